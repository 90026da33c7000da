// Replicas: the ranks that run the same stages, one in each replica of the pipeline, and this one's place among them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"

namespace gpipe::detail {

// All of them make the same calls in the same order. Throws as a flow's ends do.
//
// Thread-compatible.
class Replicas {
 public:
  // REQUIRES: `peers` outlives it; all ranks of the world make theirs in the same order.
  explicit Replicas(Peers& peers);

  int size() const { return static_cast<int>(senders_.size()); }
  int own() const { return own_; }

  // What each gives, by replica, to all. At most 7 tensors.
  std::vector<WireRecord> gather(const WireRecord& own);

  // The values that the first replica has, for all. The tensors are the same everywhere but for their values.
  void copy_first(const Tensors& tensors);

  // Puts the sum over all replicas into `vector`, which is one-dimensional and contiguous. Each element is added up in
  // the order of the replicas, so that the bits do not depend on what a vector is made of: every replica adds up a part
  // of it.
  void add_up(at::Tensor& vector);

  // Makes every wait, now and later, throw CancelledError. Thread-safe.
  void cancel();

 private:
  // What a packet is of, so that replicas that do different things find it out.
  enum Kind { kGather, kCopy, kPart, kSum };
  void put(int replica, Kind kind, const Tensors& tensors);
  Tensors take(int replica, Kind kind);
  // A tensor of that size.
  at::Tensor take_like(int replica, Kind kind, const at::Tensor& own);
  [[noreturn]] void fail(int replica, const std::string& what) const;

  Peers& peers_;
  const int own_;
  std::vector<std::unique_ptr<FlowSender>> senders_;      // by replica; null for this one
  std::vector<std::unique_ptr<FlowReceiver>> receivers_;  // the same
};

}  // namespace gpipe::detail
