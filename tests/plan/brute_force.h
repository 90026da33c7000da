// A second opinion on partitions: every one is tried, and costs are written out from the definition in partition.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "gpipe/plan/partition.h"

namespace gpipe::test {

struct Verdict {
  std::vector<int> layers_per_stage;  // empty if nothing fits
  double slowest = 0;
  double sum = 0;
  std::int64_t least_missing_bytes = std::numeric_limits<std::int64_t>::max();  // on the stage that lacks most
};

// From a stage to the next, or back.
inline double message_seconds(const PartitionOptions& options, int stage, std::int64_t bytes) {
  LinkCosts link = options.link;
  if (!options.workers.empty() && options.workers[stage].link_to_next) link = *options.workers[stage].link_to_next;
  return link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

// As large a number as there is if the stage has none.
inline std::int64_t limit_bytes(const PartitionOptions& options, int stage) {
  const bool has_own = !options.workers.empty() && options.workers[stage].memory_limit_bytes;
  const auto& limit = has_own ? options.workers[stage].memory_limit_bytes : options.memory_limit_bytes;
  return limit.value_or(std::numeric_limits<std::int64_t>::max());
}

inline double stage_seconds(const Profile& profile, const PartitionOptions& options, int stage, int begin, int end) {
  const int num_layers = static_cast<int>(profile.layers.size());
  const double share = !options.recompute_share.empty() ? options.recompute_share[stage] : options.recompute ? 1 : 0;
  double compute = 0;
  for (int layer = begin; layer < end; ++layer) {
    compute += profile.layers[layer].forward_seconds + share * profile.layers[layer].forward_seconds;
    if (options.backward) compute += profile.layers[layer].backward_seconds;
  }
  double messages = 0;
  if (end < num_layers) messages += message_seconds(options, stage, profile.layers[end - 1].output_bytes);
  if (begin > 0 && options.backward) {
    messages += message_seconds(options, stage - 1, profile.layers[begin - 1].output_bytes);
  }
  for (const SkipProfile& skip : profile.skips) {
    const auto inside = [&](int layer) { return begin <= layer && layer < end; };
    const bool is_sent_back = inside(skip.to) && !inside(skip.from) && options.backward;
    if (inside(skip.from) && !inside(skip.to)) messages += message_seconds(options, stage, skip.bytes);
    if (is_sent_back) messages += message_seconds(options, stage - 1, skip.bytes);
  }
  return compute / (options.workers.empty() ? 1 : options.workers[stage].speed) + messages;
}

// What a stage holds of one micro-batch.
struct StageHoldings {
  std::int64_t kept_inputs = 0;
  std::int64_t held = 0;      // with kept_inputs
  std::int64_t backward = 0;  // at work in a backward, with kept_inputs
};

struct SplitHoldings {
  std::int64_t deferred = 0;
  std::int64_t input_grad = 0;   // at work
  std::int64_t weight_grad = 0;  // at work
};

inline SplitHoldings split_holdings(const Profile& profile, const StageHoldings& stage, int begin, int end) {
  const int num_layers = static_cast<int>(profile.layers.size());
  const auto deferred = [&](int first, int last) {
    std::int64_t sum = 0;
    for (int index = first; index < last; ++index) {
      const LayerProfile& layer = profile.layers[index];
      sum += layer.deferred_bytes.value_or(layer.activation_bytes);
    }
    return sum;
  };
  const auto deferred_output = [&](int boundary) {
    return boundary == 0 || boundary == num_layers ? 0 : profile.layers[boundary - 1].deferred_output_bytes;
  };
  const bool is_known = std::any_of(profile.layers.begin(), profile.layers.end(),
                                    [](const LayerProfile& layer) { return layer.deferred_bytes.has_value(); });
  const std::int64_t most = std::max(stage.held, stage.backward);
  if (!is_known) return {stage.held, most, most};

  SplitHoldings split;
  std::int64_t activations = stage.kept_inputs;
  for (int index = begin; index < end; ++index) {
    const LayerProfile& layer = profile.layers[index];
    const std::int64_t backward = layer.backward_working_bytes.value_or(layer.activation_bytes);
    const std::int64_t behind = std::max<std::int64_t>(0, deferred(index + 1, end) - deferred_output(end));
    const std::int64_t at_work = activations + layer.input_grad_working_bytes.value_or(backward);
    // A stage that leaves everything to its weight gradients accumulates nothing.
    split.input_grad = std::max(split.input_grad, at_work + (deferred(0, begin) == 0 ? 0 : behind));
    split.weight_grad =
        std::max(split.weight_grad, deferred_output(begin) + deferred(begin, index) +
                                        layer.weight_grad_working_bytes.value_or(deferred(index, index + 1)));
    activations += layer.activation_bytes;
  }
  split.input_grad = std::max(split.input_grad, stage.held);
  if (deferred(0, end) == 0) {
    split.weight_grad = 0;
  } else if (deferred(0, begin) == 0) {
    std::int64_t grads = 0;
    for (int boundary = begin + 1; boundary <= end && boundary < num_layers; ++boundary) {
      std::int64_t crossing = profile.layers[boundary - 1].output_bytes;
      for (const SkipProfile& skip : profile.skips) {
        if (skip.from < boundary && skip.to >= boundary) crossing += skip.bytes;
      }
      grads = std::max(grads, crossing);
    }
    split.deferred = stage.held + grads;
    split.input_grad = std::max(split.input_grad, split.deferred);
    split.weight_grad = std::max(stage.backward, split.deferred);
  } else {
    split.deferred = deferred(begin, end) - deferred_output(end) + deferred_output(begin);
    split.weight_grad = std::max(split.weight_grad, split.deferred);
  }
  return split;
}

inline std::int64_t stage_bytes(const Profile& profile, int optimizer_slots, const std::vector<Live>& live, int begin,
                                int end) {
  std::int64_t weights = 0;
  std::int64_t activations = 0;
  std::int64_t forward = 0;   // the most in a forward, without the input
  std::int64_t backward = 0;  // the most in a backward, without what is kept of the input
  std::int64_t inputs = begin > 0 ? profile.layers[begin - 1].output_bytes : 0;
  std::int64_t kept_inputs = begin > 0 ? profile.layers[begin - 1].kept_output_bytes : 0;
  for (int index = begin; index < end; ++index) {
    const LayerProfile& layer = profile.layers[index];
    weights += layer.parameter_bytes + layer.buffer_bytes;
    weights += (layer.gradient_bytes ? *layer.gradient_bytes : layer.parameter_bytes) * (1 + optimizer_slots);
    std::int64_t in_forward = activations + layer.forward_working_bytes.value_or(layer.activation_bytes);
    if (index == begin && begin > 0 && layer.forward_working_bytes) {
      in_forward = std::max(in_forward + kept_inputs - inputs, layer.activation_bytes);
    }
    const std::int64_t in_backward = activations + layer.backward_working_bytes.value_or(layer.activation_bytes);
    forward = std::max(forward, in_forward);
    backward = std::max(backward, in_backward);
    activations += layer.activation_bytes;
  }
  if (end < static_cast<int>(profile.layers.size())) activations -= profile.layers[end - 1].kept_output_bytes;
  for (const SkipProfile& skip : profile.skips) {
    if (skip.from < begin && begin <= skip.to && skip.to < end) {
      inputs += skip.bytes;
      kept_inputs += skip.bytes;
    }
  }
  const std::int64_t whole = std::max(forward + inputs, backward + kept_inputs);
  const SplitHoldings split =
      split_holdings(profile, {kept_inputs, activations + kept_inputs, backward + kept_inputs}, begin, end);
  std::int64_t peak = 0;
  for (const Live& held : live) {
    const std::int64_t at_work = held.work == Live::Work::kInputGrad    ? split.input_grad
                                 : held.work == Live::Work::kWeightGrad ? split.weight_grad
                                                                        : whole;
    std::int64_t bytes = held.inputs * inputs + held.deferred * split.deferred;
    if (held.activations > 0) bytes += (held.activations - 1) * (activations + kept_inputs) + at_work;
    peak = std::max(peak, bytes);
  }
  return weights + peak;
}

// Calls visit(layers_per_stage) for every way to cut the layers into stages, the shortest first stages first.
template <typename Visit>
void for_each_partition(int num_layers, int num_stages, std::vector<int>& layers_per_stage, const Visit& visit) {
  if (num_stages == 1) {
    layers_per_stage.push_back(num_layers);
    visit(layers_per_stage);
    layers_per_stage.pop_back();
    return;
  }
  for (int size = 1; size <= num_layers - (num_stages - 1); ++size) {
    layers_per_stage.push_back(size);
    for_each_partition(num_layers - size, num_stages - 1, layers_per_stage, visit);
    layers_per_stage.pop_back();
  }
}

// REQUIRES: seconds that add up without rounding; options.live is set.
inline Verdict try_all(const Profile& profile, const PartitionOptions& options) {
  Verdict verdict;
  using Rank = std::tuple<double, double, double, double>;
  Rank least;
  std::vector<int> sizes;
  for_each_partition(
      static_cast<int>(profile.layers.size()), options.num_stages, sizes, [&](const std::vector<int>& tried) {
        double sum = 0, slowest = 0, squares = 0;
        std::int64_t missing = std::numeric_limits<std::int64_t>::min();
        int begin = 0;
        for (int stage = 0; stage < options.num_stages; ++stage) {
          const int end = begin + tried[stage];
          const double seconds = stage_seconds(profile, options, stage, begin, end);
          sum += seconds;
          slowest = std::max(slowest, seconds);
          squares += seconds * seconds;
          missing = std::max(missing, stage_bytes(profile, options.optimizer_slots, options.live[stage], begin, end) -
                                          limit_bytes(options, stage));
          begin = end;
        }
        verdict.least_missing_bytes = std::min(verdict.least_missing_bytes, missing);
        if (missing > 0) return;
        const double makespan = sum + (options.num_micro_batches - 1) * slowest;
        const Rank rank = {options.objective == Objective::kMakespan ? makespan : slowest, slowest, sum, squares};
        if (!verdict.layers_per_stage.empty() && !(rank < least)) return;
        least = rank;
        verdict.layers_per_stage = tried;
        verdict.slowest = slowest;
        verdict.sum = sum;
      });
  return verdict;
}

}  // namespace gpipe::test
