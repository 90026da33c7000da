// Exchange: what ranks tell each other at the same time, from one rank to another, so that a missing one is known.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/model/micro_batch.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/c10d/remote_flow.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

// Every rank makes the same calls in the same order. Throws as a flow's ends do; then this rank's part in the world has
// ended.
//
// Thread-compatible.
class Exchange {
 public:
  // REQUIRES: `peers` outlives it.
  explicit Exchange(Peers& peers) : peers_(peers) {}

  // All ranks of the world. What they get is on the CPU.
  // What each gives, by rank, to all. Through rank 0: for small things.
  std::vector<WireRecord> gather(const WireRecord& own);

  // The same to rank 0 only; nothing elsewhere. For large things.
  std::vector<WireRecord> collect(const WireRecord& own);

  // All ranks of a replica, which `root` is one of.
  // What `root` gives, to all, straight from it. What the others give does not count, and what they get is on the CPU.
  WireRecord broadcast(int root, WireRecord record);
  Tensors broadcast(int root, Tensors tensors);

 private:
  // Between a rank and all others; null for itself.
  struct Star {
    std::vector<std::unique_ptr<FlowSender>> senders;      // by rank, on the root; else only the one to the root
    std::vector<std::unique_ptr<FlowReceiver>> receivers;  // by rank, on the root; else only the one from the root

    // To all that there are senders to. From then on the tensors may be written to.
    void send_all(const WireRecord& record, std::int64_t step) const;
  };

  Star make_star(int root, int first_rank, int num_ranks, FlowScope scope);
  Star& world_star();
  Star& replica_star(int root);
  // On rank 0: its own record and those that the other ranks send, by rank.
  std::vector<WireRecord> receive_all(const WireRecord& own);

  Peers& peers_;
  std::optional<Star> world_star_;     // around rank 0; these are made when they are needed
  std::map<int, Star> replica_stars_;  // by root
  std::int64_t world_number_ = 0;      // of the exchange
  std::int64_t replica_number_ = 0;
};

// A record over a flow, in packets of that step. To receive one throws InvalidArgument for what is none.
void send(FlowSender& sender, const WireRecord& record, std::int64_t step);
WireRecord receive(FlowReceiver& receiver, std::int64_t step);

}  // namespace gpipe::detail
