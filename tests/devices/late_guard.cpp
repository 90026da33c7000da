#include "tests/devices/late_guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tests/devices/late_device.h"
#include "tests/devices/late_memory.h"
#include "tests/devices/late_stream.h"

namespace gpipe::test {
namespace {

c10::DeviceIndex& current_device() {
  thread_local c10::DeviceIndex device = 0;
  return device;
}

// The current one of this thread.
c10::Stream& stream_of(c10::DeviceIndex device) {
  thread_local std::vector<c10::Stream> streams;
  for (auto index = static_cast<c10::DeviceIndex>(streams.size()); index < kNumLateDevices; ++index) {
    streams.emplace_back(c10::Stream::DEFAULT, c10::Device(kLateDevice, index));
  }
  return streams[static_cast<std::size_t>(device)];
}

// An event is the last point that was recorded.
using Recorded = std::shared_ptr<LatePoint>;

}  // namespace

c10::Stream LateGuard::current_stream() { return current_stream(current_device()); }

c10::Stream LateGuard::current_stream(c10::DeviceIndex device) {
  return LateGuard().getStream(c10::Device(kLateDevice, device));
}

c10::DeviceType LateGuard::type() const { return kLateDevice; }

c10::Device LateGuard::exchangeDevice(c10::Device device) const {
  return {kLateDevice, std::exchange(current_device(), device.index())};
}

c10::Device LateGuard::getDevice() const { return {kLateDevice, current_device()}; }
void LateGuard::setDevice(c10::Device device) const { current_device() = device.index(); }
void LateGuard::uncheckedSetDevice(c10::Device device) const noexcept { current_device() = device.index(); }

c10::Stream LateGuard::getStream(c10::Device device) const noexcept { return stream_of(device.index()); }

c10::Stream LateGuard::getDefaultStream(c10::Device device) const { return c10::Stream(c10::Stream::DEFAULT, device); }

c10::Stream LateGuard::getStreamFromGlobalPool(c10::Device device, bool /*is_urgent*/) const {
  static std::atomic<int> num_taken{0};
  return c10::Stream(c10::Stream::UNSAFE, device, 1 + num_taken++ % LateStream::kNumPoolStreams);
}

c10::Stream LateGuard::exchangeStream(c10::Stream stream) const noexcept {
  return std::exchange(stream_of(stream.device_index()), stream);
}

void LateGuard::record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
                       c10::EventFlag /*flag*/) const {
  auto point = std::make_shared<LatePoint>();
  LateStream::of(stream).enqueue([point] { point->reach(); });
  if (*event == nullptr) *event = new Recorded();
  *static_cast<Recorded*>(*event) = std::move(point);
}

void LateGuard::block(void* event, const c10::Stream& stream) const {
  if (event == nullptr) return;
  LateStream::of(stream).enqueue([point = *static_cast<Recorded*>(event)] { point->wait(); });
}

bool LateGuard::queryEvent(void* event) const {
  return event == nullptr || (*static_cast<Recorded*>(event))->is_reached();
}

void LateGuard::destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept {
  delete static_cast<Recorded*>(event);
}

c10::DeviceIndex LateGuard::deviceCount() const noexcept { return kNumLateDevices; }

bool LateGuard::queryStream(const c10::Stream& stream) const { return LateStream::of(stream).is_idle(); }

void LateGuard::synchronizeStream(const c10::Stream& stream) const {
  check_late_device_works();
  LateStream::of(stream).synchronize();
}

void LateGuard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  const c10::DeviceIndex device = LateMemory::device_of(data.get());
  if (device >= 0) LateMemory::of(device).record(data.get(), stream);
}

C10_REGISTER_GUARD_IMPL(CUDA, LateGuard);

// What libtorch asks about CUDA apart from that.
struct LateHooks final : at::CUDAHooksInterface {
  explicit LateHooks(at::CUDAHooksArgs /*arguments*/) {}
  void initCUDA() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(std::int64_t /*device*/) const override { return true; }
  std::int64_t current_device() const override { return LateGuard().getDevice().index(); }
  int getNumGPUs() const override { return kNumLateDevices; }
  bool isPinnedPtr(void* data) const override { return PinnedMemory::holder_of(data) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::allocator(); }
  void deviceSynchronize(std::int64_t /*device*/) const override { synchronize_late_devices(); }
  const at::Generator& getDefaultCUDAGenerator(at::DeviceIndex device) const override {
    static const auto* const generators = new std::vector<at::Generator>{at::make_generator<at::CPUGeneratorImpl>(1),
                                                                         at::make_generator<at::CPUGeneratorImpl>(2)};
    return (*generators)[static_cast<std::size_t>(device < 0 ? current_device() : device)];
  }
};

}  // namespace gpipe::test

namespace at {
using gpipe::test::LateHooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, LateHooks);
}  // namespace at
