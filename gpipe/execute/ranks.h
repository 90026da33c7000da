// Ranks: the processes that run the workers of a pipeline, one each, and this one's place among them.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/transport/flow_ends.h"
#include "gpipe/transport/packet.h"

namespace gpipe {

class Exchange;
class Peers;
class Replicas;

// For PipelineOptions::peers: a world of one, so that the stages are threads of this process under a launcher, too.
std::shared_ptr<Peers> no_peers();

// What a rank does outside its own stage is done by all ranks, in the same order: they make the same calls.
//
// Thread-compatible.
class Ranks {
 public:
  // Null if this process runs all workers by itself. Without `peers`, those of the process, which the first pipeline connects
  // and the last one leaves: the world is read from the environment. Throws as read_world and Peers do.
  static std::shared_ptr<Ranks> find(std::shared_ptr<Peers> peers);

  explicit Ranks(std::shared_ptr<Peers> peers);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Peers& peers() const { return *peers_; }
  Exchange& exchange() const { return *exchange_; }
  // Those that run the same worker in other replicas; null if there is only one.
  Replicas* replicas() const { return replicas_.get(); }
  int num_replicas() const;
  int own_replica() const;

  // Throws InvalidArgument, with a remedy, unless the ranks of a replica are as many as the workers.
  void check_num_workers(int num_workers) const;
  int own_worker() const { return own_worker_; }
  // In this rank's replica, or in another one.
  int rank_of_worker(int worker) const { return rank_of_worker(worker, own_replica()); }
  int rank_of_worker(int worker, int replica) const;

  // The ends that this rank has of the flows: channels inside it, flows to other ranks. A skip or tie flow carries up to
  // `max_tensors`.
  FlowEnds<Packet> connect(const FlowTable& table, const std::vector<int>& capacities, int max_tensors) const;

  // Ends this rank's part in the world, and throws the first error.
  [[noreturn]] void fail(std::exception_ptr error) const;

 private:
  const std::shared_ptr<Peers> peers_;
  const int own_worker_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Replicas> replicas_;
};

}  // namespace gpipe
