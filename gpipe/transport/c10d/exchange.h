// Exchange: what all ranks of a replica tell each other at the same time, from one rank to another, so that a missing one is known.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"

namespace gpipe {

// Every rank makes the same calls in the same order. Throws as a flow's ends do; then this rank's part in the world has ended.
//
// Thread-compatible.
class Exchange {
 public:
  // REQUIRES: `peers` outlives it.
  explicit Exchange(Peers& peers) : peers_(peers) {}

  // What each gives, by rank, to all. Through rank 0: for small things.
  std::vector<Tensors> gather(const Tensors& own);
  std::vector<std::string> gather(const std::string& own);

  // The same to rank 0 only; nothing elsewhere. For large things.
  std::vector<Tensors> collect(const Tensors& own);

  // What `root` gives, to all, straight from it. What the others give does not count.
  Tensors broadcast(int root, Tensors tensors);
  std::string broadcast(int root, const std::string& text);

 private:
  // Between a rank and all others; null for itself.
  struct Star {
    std::vector<std::unique_ptr<FlowSender>> senders;      // by rank, on the root; else only the one to the root
    std::vector<std::unique_ptr<FlowReceiver>> receivers;  // by rank, on the root; else only the one from the root
  };

  Star& star(int root);

  Peers& peers_;
  std::map<int, Star> stars_;  // by root, made when they are needed
  std::int64_t number_ = 0;    // of the exchange
};

// Any number of tensors over a flow, in packets of that step.
void send(FlowSender& sender, const Tensors& tensors, std::int64_t step);
Tensors receive(FlowReceiver& receiver, std::int64_t step);

// Text as a tensor of bytes.
at::Tensor to_tensor(const std::string& text);
std::string to_text(const at::Tensor& bytes);

}  // namespace gpipe
