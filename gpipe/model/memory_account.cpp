#include "gpipe/model/memory_account.h"

#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "gpipe/error.h"

// Since libtorch 2, allocating changes an allocator, and an allocator can copy.
#if TORCH_VERSION_MAJOR >= 2
#define GPIPE_CONST_BEFORE_2
#else
#define GPIPE_CONST_BEFORE_2 const
#endif

namespace gpipe {
namespace {

// Note [Accounting allocator]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Every block that comes through us has a header right in front of its data, whether it is booked or not:
//
//     inner allocator's block                  data, a multiple of 64
//     v                                        v
//     [ 64 bytes, only if needed ][   Header   ][ what was asked for ... ]
//
// The data pointer is also the context of the DataPtr, as raw_allocate demands. raw_deallocate is why a header ends in
// a mark: it frees with the allocator of the day, so blocks that are older than us, such as weights in oneDNN's layout,
// come to us although they have no header. The mark is a function of the address, in the word before the data. That
// word can be read even if it is not ours, unless the data starts a page; so ours never does, and this is what the
// first 64 bytes are for.
//
// A Meta tensor has no data. Its header is the context of the DataPtr, by itself.
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kExtraBytes = 2 * kHeaderBytes;

struct Header {
  std::shared_ptr<MemoryAccount> owner;
  std::int64_t bytes = 0;
  void* inner_context = nullptr;
  c10::DeleterFnPtr inner_deleter = nullptr;
  // Stored after each change, loaded before each use. The storage's reference count orders them already, but a thread
  // sanitizer does not see into libtorch.
  std::atomic<bool> written{false};
};
// The mark is the last word.
static_assert(sizeof(Header) <= kHeaderBytes - sizeof(std::uint64_t));

bool starts_a_page(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kPageBytes == 0; }

Header& header(void* data) { return *std::launder(reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes)); }

std::uint64_t mark(const void* data) {
  return (reinterpret_cast<std::uintptr_t>(data) ^ 0x6770697065ULL) * 0x9e3779b97f4a7c15ULL;
}

// Volatile, because it is outside the lifetime of any object.
volatile std::uint64_t* mark_place(void* data) { return static_cast<volatile std::uint64_t*>(data) - 1; }

// Looks at memory that may be somebody else's, on purpose.
__attribute__((no_sanitize("address", "thread"))) bool has_header(void* data) {
  return !starts_a_page(data) && *mark_place(data) == mark(data);
}

thread_local const std::shared_ptr<MemoryAccount>* innermost_account = nullptr;

// Null if nothing is booked.
detail::MemoryCounter* innermost_counter() {
  return innermost_account != nullptr && *innermost_account != nullptr ? &(*innermost_account)->counter() : nullptr;
}

}  // namespace

namespace detail {

// Thread-safe. Never destroyed, because memory may be freed until the very end.
class AccountingAllocator final : public c10::Allocator {
 public:
  explicit AccountingAllocator(c10::Allocator* inner) : inner_(inner) { instance_ = this; }

  static void install();
  static void transfer(const at::Tensor& tensor, const std::shared_ptr<MemoryAccount>& to);
  static c10::DataPtr allocate_meta(std::size_t bytes);

  c10::DataPtr allocate(std::size_t bytes) GPIPE_CONST_BEFORE_2 override;
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }
#endif

 private:
  static void deallocate(void* data);
  static void deallocate_meta(void* context);
  // Null for memory that is not ours.
  static Header* find_header(const c10::DataPtr& block);

  static inline AccountingAllocator* instance_ = nullptr;
  c10::Allocator* const inner_;
};

// Thread-safe. Never destroyed either.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) GPIPE_CONST_BEFORE_2 override {
    return AccountingAllocator::allocate_meta(bytes);
  }
#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}
#endif
};

void AccountingAllocator::install() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* const allocator = new AccountingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(allocator, /*priority=*/1);
    if (c10::GetCPUAllocator() != allocator) {
      throw Error("cannot account for memory: a CPU allocator with a priority above 1 is installed; remove it");
    }
    c10::SetAllocator(c10::DeviceType::Meta, new MetaAllocator, /*priority=*/1);
  });
}

c10::DataPtr AccountingAllocator::allocate(std::size_t bytes) GPIPE_CONST_BEFORE_2 {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return {nullptr, nullptr, &deallocate, cpu};
  // More than any allocator has, such as a negative number: let the inner one say so.
  if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - kExtraBytes) return inner_->allocate(bytes);

  MemoryCounter* const counter = innermost_counter();
  const auto booked = static_cast<std::int64_t>(bytes);
  const std::int64_t live = counter != nullptr ? counter->reserve(booked) : 0;
  c10::DataPtr block;
  try {
    block = inner_->allocate(bytes + kExtraBytes);
  } catch (...) {
    if (counter != nullptr) counter->release(booked);
    throw;
  }
  if (counter != nullptr) counter->raise_peak(live);

  char* data = static_cast<char*>(block.get()) + kHeaderBytes;
  if (starts_a_page(data)) data += kHeaderBytes;
  auto* const made = new (data - kHeaderBytes) Header;
  if (counter != nullptr) made->owner = *innermost_account;
  made->bytes = booked;
  made->inner_deleter = block.get_deleter();
  made->inner_context = block.release_context();
  made->written.store(true, std::memory_order_release);
  *mark_place(data) = mark(data);
  return {data, data, &deallocate, cpu};
}

void AccountingAllocator::deallocate(void* data) {
  if (data == nullptr) return;
  if (!has_header(data)) return instance_->inner_->raw_deallocate(data);
  Header& freed = header(data);
  freed.written.load(std::memory_order_acquire);
  void* const inner_context = freed.inner_context;
  const c10::DeleterFnPtr inner_deleter = freed.inner_deleter;
  if (freed.owner != nullptr) freed.owner->counter().release(freed.bytes);
  freed.~Header();
  *mark_place(data) = 0;
  inner_deleter(inner_context);
}

c10::DataPtr AccountingAllocator::allocate_meta(std::size_t bytes) {
  const c10::Device meta(c10::DeviceType::Meta);
  if (bytes == 0) return {nullptr, nullptr, &deallocate_meta, meta};
  auto made = std::make_unique<Header>();
  made->bytes = static_cast<std::int64_t>(bytes);
  if (MemoryCounter* const counter = innermost_counter()) {
    counter->raise_peak(counter->reserve(made->bytes));
    made->owner = *innermost_account;
  }
  made->written.store(true, std::memory_order_release);
  return {nullptr, made.release(), &deallocate_meta, meta};
}

void AccountingAllocator::deallocate_meta(void* context) {
  if (context == nullptr) return;
  const std::unique_ptr<Header> freed(static_cast<Header*>(context));
  freed->written.load(std::memory_order_acquire);
  if (freed->owner != nullptr) freed->owner->counter().release(freed->bytes);
}

Header* AccountingAllocator::find_header(const c10::DataPtr& block) {
  void* const context = block.get_context();
  if (context == nullptr) return nullptr;
  if (block.get_deleter() == &deallocate_meta) return static_cast<Header*>(context);
  return block.get_deleter() == &deallocate ? &header(context) : nullptr;
}

void AccountingAllocator::transfer(const at::Tensor& tensor, const std::shared_ptr<MemoryAccount>& to) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  Header* const found = find_header(tensor.storage().data_ptr());
  if (found == nullptr) return;

  static std::mutex mutex;              // of all owners
  std::shared_ptr<MemoryAccount> from;  // let go of after the mutex
  const std::lock_guard<std::mutex> lock(mutex);
  Header& moved = *found;
  moved.written.load(std::memory_order_acquire);
  if (moved.owner == to) return;
  if (to != nullptr) to->counter().raise_peak(to->counter().reserve(moved.bytes));
  from = std::exchange(moved.owner, to);
  moved.written.store(true, std::memory_order_release);
  if (from != nullptr) from->counter().release(moved.bytes);
}

namespace {

thread_local std::optional<OutOfMemoryError> last_refusal;

}  // namespace

std::optional<OutOfMemoryError> take_last_refusal() { return std::exchange(last_refusal, std::nullopt); }

std::int64_t MemoryCounter::reserve(std::int64_t bytes) {
  if (limit_bytes_ == 0) return live_bytes_ += bytes;
  std::int64_t live = live_bytes_;
  do {
    if (bytes > limit_bytes_ - live) throw *(last_refusal = OutOfMemoryError(name_, bytes, live, limit_bytes_));
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes));
  return live + bytes;
}

void MemoryCounter::raise_peak(std::int64_t live_bytes) {
  std::int64_t peak = peak_bytes_;
  while (peak < live_bytes && !peak_bytes_.compare_exchange_weak(peak, live_bytes)) {
  }
}

std::int64_t MemoryCounter::peak_bytes() const {
  const std::int64_t live = live_bytes_;
  return std::max(live, peak_bytes_.load());
}

void MemoryCounter::reset_peak() {
  peak_bytes_ = 0;
  raise_peak(live_bytes_);
}

}  // namespace detail

MemoryAccount::MemoryAccount(std::string name, std::int64_t limit_bytes) : counter_(std::move(name), limit_bytes) {
  if (limit_bytes < 0) {
    throw InvalidArgument(
        fmt::format("the memory limit of {} is {} bytes; expected 0 (no limit) or more", counter_.name(), limit_bytes));
  }
  detail::AccountingAllocator::install();
}

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account)
    : account_(std::move(account)), outer_(innermost_account) {
  innermost_account = &account_;
}

MemoryScope::~MemoryScope() { innermost_account = outer_; }

void transfer(const at::Tensor& tensor, const std::shared_ptr<MemoryAccount>& to) {
  detail::AccountingAllocator::transfer(tensor, to);
}

}  // namespace gpipe
