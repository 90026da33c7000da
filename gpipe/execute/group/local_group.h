// LocalGroup: a world of one. All workers are threads of this process.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/group/group.h"
#include "gpipe/interpret/channel.h"

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
                              std::vector<WireRecord>* /*given*/) override {
    prepare(call);
    if (call.target_rows >= 0 && call.input_rows != call.target_rows) {
      throw InvalidArgument(
          fmt::format("the inputs have {} rows, but the targets have {}", call.input_rows, call.target_rows));
    }
    return {std::move(call)};
  }

  std::vector<WireRecord> gather(const WireRecord& own) override { return {own}; }
  std::vector<WireRecord> collect(const WireRecord& own) override { return {own}; }
  Tensors broadcast(int /*worker*/, Tensors tensors) override { return tensors; }
  WireRecord broadcast(int /*worker*/, WireRecord record) override { return record; }
  std::string complete(StepResult& result, const StepReport& own, int /*last_worker*/) override {
    add_up(own.loss, result);
    return own.refusal;
  }

  std::vector<WireRecord> gather_replicas(const WireRecord& own) override { return {own}; }
  void copy_first_replica(const Fingerprint& /*names*/, const Tensors& /*values*/) override {}
  GradientSum& gradient_sum() override { return gradient_sum_; }

  FlowEnds<Packet> connect(const ProvenSchedule& schedule, const FlowTensors& /*most*/) override {
    return make_channels<Packet>(schedule.capacities);
  }
  std::function<void()> connect_ties(const std::vector<Tie>& /*ties*/,
                                     const std::vector<int>& /*worker_of_layer*/) override {
    return [] {};
  }

  bool has_failed() const override { return false; }
  [[noreturn]] void fail(std::exception_ptr error) override { std::rethrow_exception(std::move(error)); }
  void leave(const std::function<void(const PeerError&)>& /*on_late_rank*/) override {}

 private:
  const World world_;
  GradientSum gradient_sum_;
};

}  // namespace gpipe::detail
