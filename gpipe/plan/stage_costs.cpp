// What stages cost, added up from their layers.
#include <fmt/format.h>

#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/plan/backward_parts.h"
#include "gpipe/plan/plan.h"
#include "gpipe/text/byte_text.h"

namespace gpipe {
namespace {

StageCosts add_up(const std::vector<LayerProfile>& layers, int begin, int end, int optimizer_slots) {
  StageCosts costs = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  WideBytes static_bytes = 0;
  for (int index = begin; index < end; ++index) {
    const LayerProfile& layer = layers[index];
    const BackwardParts parts = backward_parts(layer);
    costs.forward_seconds += layer.forward_seconds;
    costs.backward_seconds += layer.backward_seconds;
    costs.input_grad_seconds += parts.input_grad_seconds;
    costs.weight_grad_seconds += parts.weight_grad_seconds;
    costs.forward_working_bytes =
        std::max(costs.forward_working_bytes, costs.activation_bytes + forward_working_bytes(layers, index, begin));
    costs.backward_working_bytes =
        std::max(costs.backward_working_bytes, costs.activation_bytes + backward_working_bytes(layer));
    costs.activation_bytes += layer.activation_bytes;
    static_bytes += WideBytes{gradient_bytes(layer)} * (WideBytes{1} + optimizer_slots);
    static_bytes += WideBytes{layer.parameter_bytes} + layer.buffer_bytes;
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

}  // namespace

Costs stage_costs(const Profile& profile, const std::vector<int>& layers_per_stage, const LinkCosts& link,
                  int optimizer_slots) {
  check_profile(profile);
  check_layers_per_stage(layers_per_stage, profile.layers.size());
  if (optimizer_slots < 0)
    throw InvalidArgument(fmt::format("optimizer_slots is {}; expected 0 or more", optimizer_slots));
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
  return costs;
}

}  // namespace gpipe
