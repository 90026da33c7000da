#include "gpipe/plan/stage_rematerialization.h"

#include <algorithm>

#include "gpipe/plan/long_plan.h"
#include "gpipe/schedule/liveness.h"

namespace gpipe {
namespace {

// What one stage holds at its peak.
std::int64_t peak_bytes_of(const Plan& plan, const LongSchedule& schedule, std::size_t stage) {
  std::vector<StageBytes> bytes(plan.costs.stages.size());
  bytes[stage] = stage_bytes(plan.costs.stages[stage]);
  return peak_bytes_of_worker(schedule, bytes, schedule.written.worker_of_stage[stage]);
}

}  // namespace

std::vector<RematerializationCosts> rematerialization_costs(const Profile& profile, int begin, int end) {
  std::vector<RematerializationCosts> costs;
  const int last = static_cast<int>(profile.layers.size()) - 1;
  for (int index = begin; index < end; ++index) {
    const LayerProfile& layer = profile.layers[index];
    const std::int64_t kept_input_bytes = index == begin ? 0 : profile.layers[index - 1].kept_output_bytes;
    const std::int64_t kept_output_bytes = index == last ? 0 : layer.kept_output_bytes;
    RematerializationCosts one;
    one.forward_seconds = layer.forward_seconds;
    one.backward_seconds = layer.backward_seconds;
    one.activation_bytes = std::max<std::int64_t>(layer.activation_bytes + kept_input_bytes - kept_output_bytes, 0);
    one.output_bytes = layer.output_bytes;
    one.working_bytes =
        std::max(forward_working_bytes(profile.layers, index, begin), backward_working_bytes(layer)) + kept_input_bytes;
    one.output_grad_bytes = layer.output_bytes;
    costs.push_back(one);
  }
  return costs;
}

bool uses_skips(const Profile& profile, int begin, int end) {
  const auto is_inside = [&](int layer) { return layer >= begin && layer < end; };
  return std::any_of(profile.skips.begin(), profile.skips.end(),
                     [&](const SkipProfile& skip) { return is_inside(skip.from) || is_inside(skip.to); });
}

StageCosts with_rematerialization(StageCosts costs, const std::vector<RematerializationCosts>& layers,
                                  const Rematerialization& rematerialization) {
  if (rematerialization.empty()) return costs;
  const RematerializationOutcome outcome = evaluate(layers, rematerialization);
  costs.backward_seconds += outcome.recompute_seconds;
  costs.input_grad_seconds += outcome.recompute_seconds;
  costs.activation_bytes = outcome.kept_bytes;
  costs.forward_working_bytes = outcome.forward_peak_bytes;
  costs.backward_working_bytes = outcome.backward_peak_bytes;
  // A run at the beginning keeps the input, and all of it.
  if (rematerialization.front().begin == 0) costs.kept_input_bytes = costs.input_bytes;
  return costs;
}

void set_rematerialization(Plan& plan, const Profile& profile,
                           const std::vector<Rematerialization>& rematerialization) {
  if (rematerialization.empty()) return;
  plan.rematerialization = rematerialization;
  const LongSchedule schedule = long_schedule_of(plan);
  int begin = 0;
  double sum = 0;
  for (std::size_t stage = 0; stage < rematerialization.size(); ++stage) {
    const int end = begin + plan.layers_per_stage[stage];
    StageCosts& costs = plan.costs.stages[stage];
    PartitionStage& predicted = plan.partition.stages[stage];
    const double speed =
        plan.costs.worker_speed.empty() ? 1 : plan.costs.worker_speed[schedule.written.worker_of_stage[stage]];
    const double before = costs.backward_seconds;
    costs = with_rematerialization(costs, rematerialization_costs(profile, begin, end), rematerialization[stage]);
    predicted.seconds += (costs.backward_seconds - before) / speed;
    predicted.bytes = peak_bytes_of(plan, schedule, stage);
    plan.partition.slowest_seconds = std::max(plan.partition.slowest_seconds, predicted.seconds);
    sum += predicted.seconds;
    begin = end;
  }
  plan.partition.makespan_seconds = sum + (plan.num_micro_batches - 1) * plan.partition.slowest_seconds;
}

}  // namespace gpipe
