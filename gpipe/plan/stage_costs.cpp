// What stages cost, added up from their layers, and what a rematerialization makes of it.
#include <algorithm>

#include "gpipe/plan/given_partition.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/rematerialize.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::long_schedule_of;
using detail::LongSchedule;
using detail::peak_bytes_of_worker;
using detail::require;
using detail::saturated;
using detail::WideBytes;

StageCosts add_up(const std::vector<LayerProfile>& layers, int begin, int end, int optimizer_slots) {
  StageCosts costs = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {}};
  WideBytes static_bytes = 0;
  for (int index = begin; index < end; ++index) {
    const LayerProfile& layer = layers[index];
    costs.forward_seconds += layer.forward_seconds;
    costs.backward_seconds += layer.backward_seconds;
    costs.input_grad_seconds += input_grad_seconds(layer);
    costs.weight_grad_seconds += weight_grad_seconds(layer);
    costs.forward_working_bytes =
        std::max(costs.forward_working_bytes, costs.activation_bytes + forward_working_bytes(layers, index, begin));
    costs.backward_working_bytes =
        std::max(costs.backward_working_bytes, costs.activation_bytes + backward_working_bytes(layer));
    costs.activation_bytes += layer.activation_bytes;
    static_bytes += WideBytes{gradient_bytes(layer)} * (WideBytes{1} + optimizer_slots);
    static_bytes += WideBytes{layer.parameter_bytes} + layer.buffer_bytes;
  }
  if (begin == 0) {  // nothing waits for an input gradient of the first stage: it has none, see Note [Split backward]
    costs.input_grad_seconds = 0;
    costs.weight_grad_seconds = costs.backward_seconds;
  }
  costs.recompute_seconds = costs.forward_seconds;
  costs.static_bytes = saturated(static_bytes);
  costs.input_bytes = begin == 0 ? 0 : layers[begin - 1].output_bytes;
  costs.kept_input_bytes = begin == 0 ? 0 : layers[begin - 1].kept_output_bytes;
  if (end < static_cast<int>(layers.size())) costs.activation_bytes -= layers[end - 1].kept_output_bytes;
  if (costs.activation_bytes < 0) {  // a stage that passes on what it was given
    costs.kept_input_bytes += costs.activation_bytes;
    costs.activation_bytes = 0;
  }
  costs.output_bytes = layers[end - 1].output_bytes;
  return costs;
}

// See Note [Peak bytes] in partition.h.
SplitBytes split_bytes(const std::vector<LayerProfile>& layers, int begin, int end) {
  SplitBytes split;
  for (int index = begin; index < end; ++index) {
    split.weight_grad_working_bytes =
        std::max(split.weight_grad_working_bytes, split.deferred_bytes + weight_grad_working_bytes(layers[index]));
    split.deferred_bytes += deferred_bytes(layers[index]);
  }
  if (end < static_cast<int>(layers.size())) split.deferred_bytes -= layers[end - 1].deferred_output_bytes;
  std::int64_t activations = 0;
  std::int64_t deferred_behind = split.deferred_bytes;
  for (int index = begin; index < end; ++index) {
    deferred_behind -= deferred_bytes(layers[index]);
    const std::int64_t working = activations + input_grad_working_bytes(layers[index]);
    split.input_grad_working_bytes =
        std::max(split.input_grad_working_bytes, working + std::max<std::int64_t>(deferred_behind, 0));
    activations += layers[index].activation_bytes;
  }
  const std::int64_t input_bytes = begin == 0 ? 0 : layers[begin - 1].deferred_output_bytes;
  split.deferred_bytes += input_bytes;
  split.weight_grad_working_bytes += input_bytes;
  return split;
}

// Of a stage whose input needs no gradient: it leaves all of its backward to W.
SplitBytes split_bytes_of_first(const StageCosts& costs, std::int64_t output_grad_bytes) {
  const std::int64_t deferred = costs.activation_bytes + output_grad_bytes;
  return {deferred + costs.kept_input_bytes, deferred,
          std::max(costs.backward_working_bytes, costs.activation_bytes) + costs.kept_input_bytes};
}

// Of all stages, whose other costs are known.
void set_split_bytes(const std::vector<LayerProfile>& layers, const std::vector<int>& layers_per_stage, Costs& costs) {
  if (!has_deferred_bytes(layers)) return;
  std::vector<std::int64_t> output_grad_bytes;
  for (const StageCosts& stage : costs.stages) output_grad_bytes.push_back(stage.output_bytes);
  output_grad_bytes.back() = 0;  // that of the loss is one number
  for (std::size_t skip = 0; skip < costs.skip_bytes.size(); ++skip) {
    output_grad_bytes[costs.routes.skips[skip].from_stage] += costs.skip_bytes[skip];
  }
  bool has_deferred_before = false;
  int begin = 0;
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const int end = begin + layers_per_stage[stage];
    const bool has_deferred = std::any_of(layers.begin() + begin, layers.begin() + end,
                                          [](const LayerProfile& layer) { return deferred_bytes(layer) > 0; });
    StageCosts& one = costs.stages[stage];
    const bool is_first = has_deferred && !has_deferred_before;
    one.split = is_first ? split_bytes_of_first(one, output_grad_bytes[stage]) : split_bytes(layers, begin, end);
    has_deferred_before = has_deferred_before || has_deferred;
    begin = end;
  }
}

// What one stage holds at its peak.
std::int64_t peak_bytes_of(const Plan& plan, const LongSchedule& schedule, std::size_t stage) {
  std::vector<StageBytes> bytes(plan.costs.stages.size());
  bytes[stage] = stage_bytes(plan.costs.stages[stage]);
  return peak_bytes_of_worker(schedule, bytes, schedule.written.worker_of_stage[stage]);
}

}  // namespace

Costs stage_costs(const Profile& profile, const std::vector<int>& layers_per_stage, const LinkCosts& link,
                  int optimizer_slots) {
  check_profile(profile);
  detail::check_layers_per_stage(layers_per_stage, profile.layers.size());
  require(optimizer_slots >= 0, "optimizer_slots is {}; expected 0 or more", optimizer_slots);
  Costs costs;
  costs.link = link;
  std::vector<int> stage_of_layer;
  for (const int num_layers : layers_per_stage) {
    const int begin = static_cast<int>(stage_of_layer.size());
    stage_of_layer.insert(stage_of_layer.end(), num_layers, static_cast<int>(costs.stages.size()));
    costs.stages.push_back(add_up(profile.layers, begin, begin + num_layers, optimizer_slots));
  }
  for (const SkipProfile& skip : profile.skips) {
    const SkipRoute route = {stage_of_layer[skip.from], stage_of_layer[skip.to]};
    if (route.from_stage == route.to_stage) continue;
    costs.routes.skips.push_back(route);
    costs.skip_bytes.push_back(skip.bytes);
    costs.stages[route.to_stage].input_bytes += skip.bytes;
    costs.stages[route.to_stage].kept_input_bytes += skip.bytes;
  }
  set_split_bytes(profile.layers, layers_per_stage, costs);
  return costs;
}

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

bool detail::uses_skips(const Profile& profile, int begin, int end) {
  const auto is_inside = [&](int layer) { return layer >= begin && layer < end; };
  return std::any_of(profile.skips.begin(), profile.skips.end(),
                     [&](const SkipProfile& skip) { return is_inside(skip.from) || is_inside(skip.to); });
}

StageCosts detail::with_rematerialization(StageCosts costs, const std::vector<RematerializationCosts>& layers,
                                          const Rematerialization& rematerialization) {
  if (rematerialization.empty()) return costs;
  const RematerializationOutcome outcome = evaluate(layers, rematerialization);
  costs.backward_seconds += outcome.recompute_seconds;
  costs.input_grad_seconds += outcome.recompute_seconds;
  costs.activation_bytes = outcome.kept_bytes;
  costs.forward_working_bytes = outcome.forward_peak_bytes;
  costs.backward_working_bytes = outcome.backward_peak_bytes;
  // What is deferred grows while the layers are run again.
  if (costs.split) {
    costs.split->input_grad_working_bytes =
        saturated(WideBytes{outcome.backward_peak_bytes} + costs.split->deferred_bytes);
  }
  // A run at the beginning keeps the input, and all of it.
  if (rematerialization.front().begin == 0) costs.kept_input_bytes = costs.input_bytes;
  return costs;
}

void detail::set_rematerialization(Plan& plan, const Profile& profile,
                                   const std::vector<Rematerialization>& rematerialization) {
  if (rematerialization.empty()) return;
  plan.rematerialization = rematerialization;
  const LongSchedule schedule = long_schedule_of(plan);
  int begin = 0;
  for (std::size_t stage = 0; stage < rematerialization.size(); ++stage) {
    const int end = begin + plan.layers_per_stage[stage];
    StageCosts& costs = plan.costs.stages[stage];
    PartitionStage& predicted = plan.partition.stages[stage];
    const double speed = speed_of(plan.costs.workers, schedule.written.worker_of_stage[stage]);
    const double before = costs.backward_seconds;
    costs = with_rematerialization(costs, rematerialization_costs(profile, begin, end), rematerialization[stage]);
    predicted.seconds += (costs.backward_seconds - before) / speed;
    predicted.bytes = peak_bytes_of(plan, schedule, stage);
    begin = end;
  }
  detail::add_up(plan.partition, plan.num_micro_batches);
}

}  // namespace gpipe
