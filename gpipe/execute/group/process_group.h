// ProcessGroup: a world of several processes, each of which runs one worker of one replica.
#pragma once

#include <memory>

#include "gpipe/execute/group/group.h"

namespace gpipe {

class Exchange;
class Replicas;

namespace detail {

class ProcessGroup : public Group {
 public:
  explicit ProcessGroup(std::shared_ptr<Peers> peers);
  ~ProcessGroup() override;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const World& world() const override;
  void check_num_workers(int num_workers) const override;
  bool runs_worker(int worker) const override { return worker == own_worker_; }
  int num_own_workers(int /*num_workers*/) const override { return 1; }
  std::string host_of(int rank) const override;

  void begin(const std::function<void(Fingerprint*)>& make) override;
  void compare(const Fingerprint& fingerprint) override;
  std::vector<StepCall> agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                              std::vector<WireRecord>* given) override;

  std::vector<WireRecord> gather(const WireRecord& own) override;
  std::vector<WireRecord> collect(const WireRecord& own) override;
  Tensors broadcast(int worker, Tensors tensors) override;
  WireRecord broadcast(int worker, WireRecord record) override;
  std::string complete(StepResult& result, const StepReport& own, int last_worker) override;

  std::vector<WireRecord> gather_replicas(const WireRecord& own) override;
  void copy_first_replica(const Fingerprint& names, const Tensors& values) override;
  GradientSum& gradient_sum() override { return *gradient_sum_; }

  FlowEnds<Packet> connect(const ProvenSchedule& schedule, const FlowTensors& most) override;
  std::unique_ptr<TiedValues> connect_ties(const std::vector<Tie>& ties,
                                           const std::vector<int>& worker_of_layer) override;

  void check() const override;
  bool has_failed() const override;
  [[noreturn]] void fail(std::exception_ptr error) override;
  void leave(const std::function<void(const PeerError&)>& on_late_rank) override;

 private:
  // In this rank's replica, or in another one.
  int rank_of_worker(int worker) const;
  int rank_of_worker(int worker, int replica) const;
  // A channel inside the process, a flow to another one, or nothing.
  void connect_flow(const ProvenSchedule& schedule, std::size_t flow, int id, const FlowTensors& most,
                    FlowEnds<Packet>& ends) const;

  const std::shared_ptr<Peers> peers_;
  const int own_worker_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Replicas> replicas_;  // of which this is one, also if it is the only one
  std::unique_ptr<GradientSum> gradient_sum_;
};

}  // namespace detail
}  // namespace gpipe
