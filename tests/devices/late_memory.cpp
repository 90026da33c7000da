#include "tests/devices/late_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/devices/late_device.h"

namespace gpipe::test {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{2} << 30;
constexpr std::size_t kBlockBytes = 512;
constexpr int kPoison = 0x7f;  // a float of these bytes is 3.4e38

void* map_bytes(int file, int access) {
  void* const mapped = mmap(nullptr, kDeviceBytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "there is no memory for the late device");
  return mapped;
}

// By their beginnings: what keeps them, and their ends.
struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, std::pair<std::shared_ptr<void>, const char*>> by_begin;
};

PinnedBlocks& pinned_blocks() {
  static auto* const blocks = new PinnedBlocks();
  return *blocks;
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const override {
    const std::shared_ptr<char[]> block(new char[std::max<std::size_t>(bytes, 1)]);
    char* const begin = block.get();
    PinnedBlocks& blocks = pinned_blocks();
    const std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.by_begin[begin] = {block, begin + bytes};
    return {begin, begin,
            [](void* pointer) {
              PinnedBlocks& all = pinned_blocks();
              const std::lock_guard<std::mutex> inner(all.mutex);
              all.by_begin.erase(static_cast<const char*>(pointer));
            },
            c10::Device(c10::kCPU)};
  }
};

}  // namespace

LateMemory::LateMemory(c10::DeviceIndex device) : device_(device) {
  const int file = memfd_create("late device", 0);
  TORCH_CHECK(file >= 0 && ftruncate(file, kDeviceBytes) == 0, "there is no memory for the late device");
  base_ = next_ = static_cast<char*>(map_bytes(file, PROT_NONE));
  alias_ = static_cast<char*>(map_bytes(file, PROT_READ | PROT_WRITE));
  close(file);
}

LateMemory& LateMemory::of(c10::DeviceIndex device) {
  static auto* const all = new std::array<LateMemory*, kNumLateDevices>{new LateMemory(0), new LateMemory(1)};
  return *all->at(static_cast<std::size_t>(device));
}

c10::DeviceIndex LateMemory::device_of(const void* pointer) {
  for (c10::DeviceIndex device = 0; device < kNumLateDevices; ++device) {
    const auto* const byte = static_cast<const char*>(pointer);
    if (byte >= of(device).base_ && byte < of(device).base_ + kDeviceBytes) return device;
  }
  return -1;
}

void* LateMemory::alias_of(void* pointer) {
  const c10::DeviceIndex device = device_of(pointer);
  if (device < 0) return pointer;
  return of(device).alias_ + (static_cast<char*>(pointer) - of(device).base_);
}

void LateMemory::make_idle(const Block& block) {
  idle_.emplace(std::make_pair(block.stream.id(), block.bytes), block.begin);
}

void LateMemory::collect() {
  for (auto leaving = leaving_.begin(); leaving != leaving_.end();) {
    if (!std::all_of(leaving->points.begin(), leaving->points.end(),
                     [](const auto& point) { return point->is_reached(); })) {
      ++leaving;
      continue;
    }
    make_idle(leaving->block);
    leaving = leaving_.erase(leaving);
  }
}

void* LateMemory::take(std::size_t bytes, const c10::Stream& stream) {
  bytes = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  collect();
  Block block{nullptr, bytes, stream, {}};
  if (const auto found = idle_.find({stream.id(), bytes}); found != idle_.end()) {
    block.begin = found->second;
    idle_.erase(found);
  } else {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kDeviceBytes - static_cast<std::size_t>(next_ - base_),
                     "the late device has no memory left");
    block.begin = std::exchange(next_, next_ + bytes);
  }
  used_.emplace(block.begin, block);
  void* const alias = alias_of(block.begin);
  LateStream::of(stream).enqueue_own([alias, bytes] { std::memset(alias, kPoison, bytes); });
  return block.begin;
}

void LateMemory::give(void* pointer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(pointer);
  const Block block = std::move(found->second);
  used_.erase(found);
  if (block.users.empty()) {
    make_idle(block);
    return;
  }
  Leaving leaving{block, {}};
  for (const c10::Stream& user : block.users) {
    leaving.points.push_back(std::make_shared<LatePoint>());
    LateStream::of(user).enqueue_own([point = leaving.points.back()] { point->reach(); });
  }
  leaving_.push_back(std::move(leaving));
}

void LateMemory::record(const void* pointer, const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(pointer);
  if (found == used_.end()) return;
  Block& block = found->second;
  if (stream == block.stream || std::count(block.users.begin(), block.users.end(), stream) != 0) return;
  block.users.push_back(stream);
}

c10::Allocator& PinnedMemory::allocator() {
  static auto* const allocator = new PinnedAllocator();
  return *allocator;
}

std::shared_ptr<void> PinnedMemory::holder_of(const void* pointer) {
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard<std::mutex> lock(blocks.mutex);
  const auto* const byte = static_cast<const char*>(pointer);
  auto found = blocks.by_begin.upper_bound(byte);
  if (found == blocks.by_begin.begin()) return nullptr;
  --found;
  return byte < found->second.second ? found->second.first : nullptr;
}

}  // namespace gpipe::test
