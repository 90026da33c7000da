// Memory account: live and peak bytes of tensor memory by owner, with an enforced limit.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpipe/error.h"

namespace gpipe {

namespace detail {

// Bytes that are live, the most that were, and a limit.
//
// Thread-safe.
class MemoryCounter {
 public:
  // A limit of 0 is none.
  MemoryCounter(std::string name, std::int64_t limit_bytes) : name_(std::move(name)), limit_bytes_(limit_bytes) {}

  const std::string& name() const { return name_; }
  std::int64_t limit_bytes() const { return limit_bytes_; }
  std::int64_t live_bytes() const { return live_bytes_; }
  // At least what is live, also while another thread has not raised it yet.
  std::int64_t peak_bytes() const;
  void reset_peak();

  // What is live after it. Throws OutOfMemoryError, having changed nothing.
  std::int64_t reserve(std::int64_t bytes);
  void raise_peak(std::int64_t live_bytes);
  void release(std::int64_t bytes) { live_bytes_ -= bytes; }

 private:
  const std::string name_;
  const std::int64_t limit_bytes_;
  std::atomic<std::int64_t> live_bytes_{0};
  std::atomic<std::int64_t> peak_bytes_{0};
};

// What this thread's allocations were last refused with, once. For those who call what turns exceptions into others, as
// TorchScript's interpreter does.
std::optional<OutOfMemoryError> take_last_refusal();

}  // namespace detail

// Counts the bytes that tensors asked for, not what the system allocator adds. Made with std::make_shared: memory
// booked on an account keeps it alive.
//
// Tensors of the Meta device count as if they had memory: a run on Meta tensors books what the same run on the CPU
// would.
//
// The first account of the process replaces libtorch's CPU allocator, for good, by one that passes on to it, and its
// Meta allocator; without an account nothing is replaced. libtorch does that without a lock: make the first account
// before other threads allocate. Not seen: memory of other devices, memory that does not come from libtorch's CPU
// allocator (from_blob, OpenBLAS buffers, graph nodes), storages made before the first account, even when they are
// resized later, and the growth of a Meta tensor that is resized.
//
// Thread-safe.
class MemoryAccount {
 public:
  // A limit of 0 is none. Throws InvalidArgument for a negative limit, and Error if the CPU allocator cannot be
  // replaced because somebody installed another one with a priority above ours.
  explicit MemoryAccount(std::string name, std::int64_t limit_bytes = 0);
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  const std::string& name() const { return counter_.name(); }
  std::int64_t limit_bytes() const { return counter_.limit_bytes(); }
  // Never above the limit.
  std::int64_t live_bytes() const { return counter_.live_bytes(); }
  // The most that was live since the last reset_peak().
  std::int64_t peak_bytes() const { return counter_.peak_bytes(); }
  // The peak becomes what is live now.
  void reset_peak() { counter_.reset_peak(); }

  // For the allocator of this library.
  detail::MemoryCounter& counter() { return counter_; }

 private:
  detail::MemoryCounter counter_;
};

// While it lives, CPU and Meta tensor memory that this thread allocates is booked on the account; it is booked off when
// it is freed, by whichever thread, whenever. An allocation past the limit throws OutOfMemoryError out of the libtorch
// operation. Scopes nest: the inner one counts, and one with a null account books nothing. Scratch memory that an
// operation allocates in its intra-op threads is not booked.
//
// Confined to its thread.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryAccount> account);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  const std::shared_ptr<MemoryAccount> account_;
  const std::shared_ptr<MemoryAccount>* const outer_;
};

// Books the whole storage of `tensor`, which all its views share, off the account it is on, if any, and onto `to`; a
// null `to` only books it off. Does nothing for memory that is not ours: see MemoryAccount. Throws OutOfMemoryError if
// `to` has no room for it, and nothing has changed.
//
// Thread-safe, also for the same storage, as long as each caller holds the tensor and nobody resizes it.
void transfer(const at::Tensor& tensor, const std::shared_ptr<MemoryAccount>& to);

}  // namespace gpipe
