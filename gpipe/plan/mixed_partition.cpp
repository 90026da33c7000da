#include "gpipe/plan/mixed_partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpipe/plan/interval_bytes.h"
#include "gpipe/plan/long_plan.h"

namespace gpipe {
namespace {

constexpr Recompute kLightestFirst[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};

// What one stage takes in each mode, and how far it can reach in it.
struct StageModes {
  std::vector<double> forwards;                       // by mode: how often it runs a forward
  std::vector<const std::vector<int>*> furthest_end;  // by mode, then by first layer
  double speed = 1;
};

// Seconds up to each layer.
struct PrefixSeconds {
  std::vector<double> forward = {0};
  std::vector<double> backward = {0};
};

constexpr double kEndless = std::numeric_limits<double>::infinity();

double seconds(const PrefixSeconds& sums, const StageModes& stage, int begin, int end) {
  for (std::size_t mode = 0; mode < stage.forwards.size(); ++mode) {
    if (end > (*stage.furthest_end[mode])[begin]) continue;
    const double forward = sums.forward[end] - sums.forward[begin];
    const double backward = sums.backward[end] - sums.backward[begin];
    return (stage.forwards[mode] * forward + backward) / stage.speed;
  }
  return kEndless;
}

// cuts[stage][end] is the first layer of the stage, if it and those before it end there.
std::vector<int> follow(const std::vector<std::vector<int>>& cuts, int num_layers) {
  std::vector<int> layers_per_stage(cuts.size());
  int end = num_layers;
  for (std::size_t stage = cuts.size(); stage-- > 0;) {
    const int begin = cuts[stage][end];
    layers_per_stage[stage] = end - begin;
    end = begin;
  }
  return layers_per_stage;
}

// Least slowest stage, then least sum.
std::vector<int> cut(const PrefixSeconds& sums, const std::vector<StageModes>& stages) {
  const int num_layers = static_cast<int>(sums.forward.size()) - 1;
  using Rank = std::pair<double, double>;
  std::vector<Rank> least(num_layers + 1, Rank{kEndless, kEndless});
  least[0] = {0, 0};
  std::vector<std::vector<int>> cuts;
  for (const StageModes& stage : stages) {
    std::vector<Rank> next(num_layers + 1, Rank{kEndless, kEndless});
    cuts.emplace_back(num_layers + 1, 0);
    for (int begin = 0; begin < num_layers; ++begin) {
      if (least[begin].first == kEndless) continue;
      for (int end = begin + 1; end <= num_layers; ++end) {
        const double own = seconds(sums, stage, begin, end);
        if (own == kEndless) break;
        const Rank rank = {std::max(least[begin].first, own), least[begin].second + own};
        if (!(rank < next[end])) continue;
        next[end] = rank;
        cuts.back()[end] = begin;
      }
    }
    least = std::move(next);
  }
  return least[num_layers].first == kEndless ? std::vector<int>() : follow(cuts, num_layers);
}

}  // namespace

std::vector<int> mixed_layers_per_stage(const Profile& profile, const PlanOptions& options) {
  const LongSchedule base =
      make_long_schedule(options.schedule, options.num_stages, options.num_micro_batches, options.chunks);
  const IntervalBytes bytes(profile, options.optimizer_slots);
  FurthestEnds furthest(bytes, *options.memory_limit_bytes / (base.num_stages() / base.num_workers()));
  std::vector<StageModes> stages(base.num_stages());
  for (const Recompute mode : kLightestFirst) {
    const PartitionOptions known = options_for_schedule({}, with_recompute(base, mode));
    for (int stage = 0; stage < base.num_stages(); ++stage) {
      stages[stage].forwards.push_back(1 + known.recompute_share[stage]);
      stages[stage].furthest_end.push_back(&furthest.of(known.live[stage]));
      if (!options.worker_speed.empty()) {
        stages[stage].speed = options.worker_speed[base.written.worker_of_stage[stage]];
      }
    }
  }
  PrefixSeconds sums;
  for (const LayerProfile& layer : profile.layers) {
    sums.forward.push_back(sums.forward.back() + layer.forward_seconds);
    sums.backward.push_back(sums.backward.back() + layer.backward_seconds);
  }
  return cut(sums, stages);
}

}  // namespace gpipe
