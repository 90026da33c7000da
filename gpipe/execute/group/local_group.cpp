#include "gpipe/execute/group/local_group.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/interpret/channel.h"

namespace gpipe::detail {

std::vector<StepCall> LocalGroup::agree(StepCall call, const std::function<void(StepCall&)>& prepare,
                                        std::vector<WireRecord>* /*given*/) {
  prepare(call);
  if (call.target_rows >= 0 && call.input_rows != call.target_rows) {
    throw InvalidArgument(
        fmt::format("the inputs have {} rows, but the targets have {}", call.input_rows, call.target_rows));
  }
  return {std::move(call)};
}

std::string LocalGroup::complete(StepResult& result, const StepReport& own, int /*last_worker*/) {
  add_up(own.loss, result);
  return own.refusal;
}

FlowEnds<Packet> LocalGroup::connect(const ProvenSchedule& schedule, const FlowTensors& /*most*/) {
  return make_channels<Packet>(schedule.capacities);
}

void LocalGroup::fail(std::exception_ptr error) { std::rethrow_exception(std::move(error)); }

}  // namespace gpipe::detail
