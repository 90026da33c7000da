// LocalGroup: a world of one. All workers are threads of this process.
#pragma once

#include "gpipe/execute/group/group.h"

namespace gpipe::detail {

class LocalGroup : public Group {
 public:
  const World& world() const override { return world_; }
  void check_num_workers(int /*num_workers*/) const override {}
  bool runs_worker(int /*worker*/) const override { return true; }
  int num_own_workers(int num_workers) const override { return num_workers; }
  std::string host_of(int /*rank*/) const override { return world_.host; }

  void begin(const std::function<void(Fingerprint*)>& make) override { make(nullptr); }
  void compare(const Fingerprint& /*fingerprint*/) override {}
  std::vector<StepCall> agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                              std::vector<WireRecord>* given) override;

  std::vector<WireRecord> gather(const WireRecord& own) override { return {own}; }
  std::vector<WireRecord> collect(const WireRecord& own) override { return {own}; }
  Tensors broadcast(int /*worker*/, Tensors tensors) override { return tensors; }
  WireRecord broadcast(int /*worker*/, WireRecord record) override { return record; }
  std::string complete(StepResult& result, const StepReport& own, int last_worker) override;

  std::vector<WireRecord> gather_replicas(const WireRecord& own) override { return {own}; }
  void copy_first_replica(const Fingerprint& /*names*/, const Tensors& /*values*/) override {}
  GradientSum& gradient_sum() override { return gradient_sum_; }

  FlowEnds<Packet> connect(const ProvenSchedule& schedule, const FlowTensors& most) override;
  std::unique_ptr<TiedValues> connect_ties(const std::vector<Tie>& /*ties*/,
                                           const std::vector<int>& /*worker_of_layer*/) override {
    return std::make_unique<TiedValues>();
  }

  void check() const override {}
  bool has_failed() const override { return false; }
  [[noreturn]] void fail(std::exception_ptr error) override;
  void leave(const std::function<void(const PeerError&)>& /*on_late_rank*/) override {}

 private:
  const World world_;
  GradientSum gradient_sum_;
};

}  // namespace gpipe::detail
