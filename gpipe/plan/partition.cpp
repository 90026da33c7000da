#include "gpipe/plan/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/given_partition.h"
#include "gpipe/plan/intervals.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::exact_byte_text;
using detail::FurthestEnds;
using detail::IntervalBytes;
using detail::IntervalSeconds;
using detail::require;
using detail::Shortfall;
using detail::Ticks;

void check_per_stage(const char* name, std::size_t size, int num_stages) {
  require(size == 0 || size == static_cast<std::size_t>(num_stages),
          "{} has {} entries for {} stages; expected one per stage, or none", name, size, num_stages);
}

void check(const Profile& profile, const PartitionOptions& options) {
  check_profile(profile);
  const std::size_t num_layers = profile.layers.size();
  require(num_layers <= kMaxPartitionLayers, "the profile has {} layers; expected at most {}: join neighbours",
          num_layers, kMaxPartitionLayers);
  require(options.num_stages >= 1, "num_stages is {}; expected at least 1", options.num_stages);
  require(static_cast<std::size_t>(options.num_stages) <= num_layers,
          "{} stages need {} layers or more, and the profile has {}; ask for at most {} {}, or split layers",
          options.num_stages, options.num_stages, num_layers, num_layers, num_layers == 1 ? "stage" : "stages");
  require(options.num_micro_batches >= 1, "num_micro_batches is {}; expected at least 1", options.num_micro_batches);
  require(options.optimizer_slots >= 0, "optimizer_slots is {}; expected 0 or more", options.optimizer_slots);
  check_workers(options.workers, options.num_stages, "stages");
  check_per_stage("recompute_share", options.recompute_share.size(), options.num_stages);
  check_per_stage("live", options.live.size(), options.num_stages);
  check_link("link", options.link);
  const std::int64_t limit = options.memory_limit_bytes.value_or(0);
  require(limit >= 0, "memory_limit_bytes is {}; expected 0 or more", limit);
  for (const double share : options.recompute_share) {
    require(share >= 0 && share <= 1, "recompute_share is {}; expected 0 to 1", share);
  }
  for (const std::vector<Live>& stage : options.live) {
    for (const Live& held : stage) {
      require(held.activations >= 0 && held.inputs >= 0 && held.deferred >= 0,
              "live has {} activations, {} inputs and {} deferred; expected 0 or more", held.activations, held.inputs,
              held.deferred);
    }
  }
}

// `live` of the options, or its default for any number of stages: see PartitionOptions.
std::vector<std::vector<Live>> live_of(const PartitionOptions& options, int num_stages) {
  if (num_stages != options.num_stages && options.live_for) {
    std::vector<std::vector<Live>> live = options.live_for(num_stages);
    require(live.empty() || live.size() == static_cast<std::size_t>(num_stages),
            "live_for({}) returns {} entries; expected one per stage, or none", num_stages, live.size());
    return live;
  }
  if (options.live.empty()) return std::vector<std::vector<Live>>(num_stages, {Live{1, 0}});
  std::vector<std::vector<Live>> live(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    live[stage] = options.live[std::max(0, options.num_stages - num_stages + stage)];
  }
  return live;
}

// Whether some partition into live.size() stages keeps within the furthest ends.
bool fits(FurthestEnds& furthest, const std::vector<std::vector<Live>>& live, std::int64_t limit_bytes,
          int num_layers) {
  const int num_stages = static_cast<int>(live.size());
  const int nowhere = num_layers + 1;
  // next[b]: the first layer, b or behind, from which the stages behind the present one fit.
  std::vector<int> next(num_layers + 1, num_layers);
  for (int stage = num_stages - 1; stage >= 0; --stage) {
    const std::vector<int>& furthest_end = furthest.of(live[stage], limit_bytes);
    const int last_begin = num_layers - (num_stages - stage);
    int next_end = next[last_begin + 1];
    next[last_begin + 1] = nowhere;
    for (int begin = last_begin; begin >= stage; --begin) {
      const bool is_fitting = next_end <= furthest_end[begin];
      next_end = next[begin];
      next[begin] = is_fitting ? begin : next[begin + 1];
    }
    if (next[stage] == nowhere) return false;
  }
  return next[0] == 0;
}

// The memory limit of each stage.
std::vector<std::int64_t> limits_of(const PartitionOptions& options) {
  std::vector<std::int64_t> limits;
  for (int stage = 0; stage < options.num_stages; ++stage) {
    limits.push_back(memory_limit_of(options.workers, options.memory_limit_bytes, stage));
  }
  return limits;
}

// The least number of stages that fits the limit; 0 if none does.
int smallest_num_stages(const IntervalBytes& bytes, const PartitionOptions& options, std::int64_t limit_bytes) {
  const auto holds_activations = [](const std::vector<Live>& live) {
    return std::any_of(live.begin(), live.end(), [](const Live& held) { return held.activations > 0; });
  };
  const std::vector<std::vector<Live>> own = live_of(options, options.num_stages);
  const bool is_at_work = std::all_of(own.begin(), own.end(), holds_activations);
  FurthestEnds furthest(bytes);
  const int first = bytes.least_num_stages(is_at_work, limit_bytes);
  for (int num_stages = first; num_stages > 0 && num_stages <= bytes.num_layers(); ++num_stages) {
    const std::vector<std::vector<Live>> live = live_of(options, num_stages);
    if (!live.empty() && fits(furthest, live, limit_bytes, bytes.num_layers())) return num_stages;
  }
  return 0;
}

[[noreturn]] void fail_infeasible(const IntervalBytes& bytes, const PartitionOptions& options,
                                  const std::vector<std::int64_t>& limits) {
  const Shortfall least = bytes.least_shortfall(live_of(options, options.num_stages), limits);
  const std::int64_t limit = limits[least.stage];
  if (std::any_of(limits.begin(), limits.end(), [&](std::int64_t other) { return other != limit; })) {
    throw InfeasibleError(
        fmt::format("no partition of {} layers into {} stages fits their memory limits: the best lacks {} on stage {}, "
                    "whose limit is {}; raise it, recompute, or use smaller micro-batches",
                    bytes.num_layers(), options.num_stages, exact_byte_text(least.missing_bytes), least.stage,
                    exact_byte_text(limit)),
        least.missing_bytes, 0, least.stage);
  }
  const int smallest = smallest_num_stages(bytes, options, limit);
  const std::string remedy =
      smallest > 0
          ? fmt::format("the smallest number of stages that fits is {}", smallest)
          : "no number of stages was found that fits: raise the limit, recompute, or use smaller micro-batches";
  throw InfeasibleError(
      fmt::format("no partition of {} layers into {} stages fits the limit of {} a stage: the best lacks {} on its "
                  "fullest stage, {}; {}",
                  bytes.num_layers(), options.num_stages, exact_byte_text(limit), exact_byte_text(least.missing_bytes),
                  least.stage, remedy),
      least.missing_bytes, smallest, least.stage);
}

Partition describe(const std::vector<int>& layers_per_stage, const IntervalSeconds& seconds, const IntervalBytes& bytes,
                   const PartitionOptions& options) {
  const std::vector<std::vector<Live>> live = live_of(options, options.num_stages);
  Partition partition;
  int begin = 0;
  for (int stage = 0; stage < options.num_stages; ++stage) {
    const int end = begin + layers_per_stage[stage];
    partition.stages.push_back({end - begin, seconds.seconds(stage, begin, end), bytes.bytes(live[stage], begin, end)});
    begin = end;
  }
  detail::add_up(partition, options.num_micro_batches);
  return partition;
}

__extension__ using WideTicks = __int128;

// More than any sum of stages, and small enough to add one to.
constexpr Ticks kNone = std::numeric_limits<Ticks>::max() / 2;

// The layers at which one stage may begin, ascending. No partition that has it begin there has a smaller sum over the
// stages in front of it, or from it on, than these bounds.
struct Begins {
  std::vector<int> layer;
  std::vector<Ticks> before;
  std::vector<Ticks> behind;

  std::size_t size() const { return layer.size(); }
  void add(int begin, Ticks sum_before, Ticks sum_behind) {
    layer.push_back(begin);
    before.push_back(sum_before);
    behind.push_back(sum_behind);
  }
};

// A set of partitions: where each stage may begin and, as the last element, where the last stage ends.
using Candidates = std::vector<Begins>;

Candidates all_partitions(int num_layers, int num_stages) {
  Candidates candidates(num_stages + 1);
  candidates[0].add(0, 0, 0);
  for (int stage = 1; stage < num_stages; ++stage) {
    for (int begin = stage; begin <= num_layers - (num_stages - stage); ++begin) candidates[stage].add(begin, 0, 0);
  }
  candidates[num_stages].add(num_layers, 0, 0);
  return candidates;
}

// Leaves out what only partitions with a greater sum need.
Candidates up_to(const Candidates& candidates, WideTicks sum) {
  Candidates kept(candidates.size());
  for (std::size_t stage = 0; stage < candidates.size(); ++stage) {
    const Begins& begins = candidates[stage];
    for (std::size_t index = 0; index < begins.size(); ++index) {
      if (begins.before[index] + begins.behind[index] > sum) continue;
      kept[stage].add(begins.layer[index], begins.before[index], begins.behind[index]);
    }
  }
  return kept;
}

// What a stage may be when its first layer is known: it ends at ends[first], ..., or ends[last - 1], where ends are the
// layers at which the next stage may begin.
struct Stages {
  IntervalSeconds::Row row;
  const int* ends;
  std::size_t first;
  std::size_t last;
};

// Calls visit(index, ticks) for the stages that stay within the cap. Returns a bound on the next cap: no stage takes
// more than the cap and less than this.
template <typename Visit>
Ticks visit_within(Ticks cap, const Stages& stages, const Visit& visit) {
  Ticks next_cap = kNone;
  for (std::size_t index = stages.first; index < stages.last; ++index) {
    const Ticks compute_ticks = stages.row.compute_ticks(stages.ends[index]);
    if (compute_ticks > cap) return std::min(next_cap, compute_ticks);
    const Ticks ticks = stages.row.ticks(stages.ends[index]);
    if (ticks > cap) {
      next_cap = std::min(next_cap, ticks);
    } else {
      visit(index, ticks);
    }
  }
  return next_cap;
}

using SumAndSlowest = std::pair<Ticks, Ticks>;
using Behind = std::vector<std::vector<SumAndSlowest>>;

// The least sum of the candidates whose stages stay within a cap, and the least slowest stage that comes with this sum.
struct Corner {
  Behind behind;           // from each stage and layer on
  Ticks next_cap = kNone;  // any cap below this gives the same corner
  // Of whole partitions; kNone if no candidate stays within the cap.
  const SumAndSlowest& point() const { return behind[0][0]; }
};

// The search for the best partition: dynamic programmes over the stages, from the last to the first.
//
// For the makespan it finds the candidate of the least sum + (M-1)·slowest; of several, the one with the least slowest
// stage. The least sum within a cap falls in steps as the cap grows. least_sum finds the corner of a step; a partition
// between two corners has a greater sum than the right one and a greater slowest stage than the left one. It is looked
// for only if that could beat the best so far, and only among the begins of stages whose bounds could.
//
//   sum │ ×
//       │ └──×
//       │    └─────×────
//       └──────────────── cap
class PartitionSearch {
 public:
  // Stage s may take the layers [begin, end) for begin < end <= (*furthest_end[s])[begin].
  PartitionSearch(const IntervalSeconds& seconds, std::vector<const std::vector<int>*> furthest_end,
                  int num_micro_batches)
      : seconds_(seconds), furthest_end_(std::move(furthest_end)), weight_(num_micro_batches - 1) {}

  // Layers per stage of the partition that Objective describes; empty if there is none.
  std::vector<int> layers_per_stage(Objective objective) {
    const Candidates all = all_partitions(seconds_.num_layers(), seconds_.num_stages());
    const Ticks slowest = least_slowest(all);
    if (slowest >= kNone) return {};
    return most_even(all, objective == Objective::kMakespan ? slowest_of_makespan(all, slowest) : slowest);
  }

 private:
  Stages stages_from(const Candidates& candidates, std::size_t stage, int begin) const {
    const std::vector<int>& ends = candidates[stage + 1].layer;
    const auto first = std::upper_bound(ends.begin(), ends.end(), begin);
    const auto last = std::upper_bound(first, ends.end(), (*furthest_end_[stage])[begin]);
    return {seconds_.row(static_cast<int>(stage), begin), ends.data(), static_cast<std::size_t>(first - ends.begin()),
            static_cast<std::size_t>(last - ends.begin())};
  }

  // For each stage and each layer it may begin at, the best that it and the stages behind it can do: best(stages,
  // rest), where rest[index] is the best from stages.ends[index] on.
  template <typename Value, typename Best>
  std::vector<std::vector<Value>> sweep(const Candidates& candidates, const Value& nothing_left,
                                        const Best& best) const {
    std::vector<std::vector<Value>> values(candidates.size());
    values.back().assign(candidates.back().size(), nothing_left);
    for (std::size_t stage = candidates.size() - 1; stage-- > 0;) {
      for (const int begin : candidates[stage].layer) {
        values[stage].push_back(best(stages_from(candidates, stage, begin), values[stage + 1].data()));
      }
    }
    return values;
  }

  // The least max(t); kNone if there is no partition.
  Ticks least_slowest(const Candidates& candidates) const {
    const auto best = [](const Stages& stages, const Ticks* rest) {
      Ticks least = kNone;
      for (std::size_t index = stages.first; index < stages.last; ++index) {
        if (stages.row.compute_ticks(stages.ends[index]) >= least) break;
        least = std::min(least, std::max(stages.row.ticks(stages.ends[index]), rest[index]));
      }
      return least;
    };
    return sweep<Ticks>(candidates, 0, best)[0][0];
  }

  Corner least_sum(const Candidates& candidates, Ticks cap) const {
    Corner corner;
    const auto best = [&](const Stages& stages, const SumAndSlowest* rest) {
      SumAndSlowest least = {kNone, kNone};
      const Ticks next_cap = visit_within(cap, stages, [&](std::size_t index, Ticks ticks) {
        const Ticks sum = ticks + rest[index].first;
        if (sum > least.first) return;
        const Ticks slowest = std::max(ticks, rest[index].second);
        if (sum < least.first || slowest < least.second) least = {sum, slowest};
      });
      corner.next_cap = std::min(corner.next_cap, next_cap);
      return least;
    };
    corner.behind = sweep<SumAndSlowest>(candidates, {0, 0}, best);
    return corner;
  }

  // The candidates that stay within the cap, with the bounds that follow from it.
  Candidates within(const Candidates& candidates, Ticks cap, const Behind& behind) const {
    Candidates kept(candidates.size());
    std::vector<Ticks> before = {0};
    for (std::size_t stage = 0; stage < candidates.size(); ++stage) {
      std::vector<Ticks> next_before(stage + 1 < candidates.size() ? candidates[stage + 1].size() : 0, kNone);
      for (std::size_t index = 0; index < candidates[stage].size(); ++index) {
        if (before[index] >= kNone || behind[stage][index].first >= kNone) continue;
        const int begin = candidates[stage].layer[index];
        kept[stage].add(begin, before[index], behind[stage][index].first);
        if (next_before.empty()) continue;
        visit_within(cap, stages_from(candidates, stage, begin), [&](std::size_t end, Ticks ticks) {
          next_before[end] = std::min(next_before[end], before[index] + ticks);
        });
      }
      before.swap(next_before);
    }
    return kept;
  }

  // The slowest stage of the best, given the least there is.
  Ticks slowest_of_makespan(const Candidates& candidates, Ticks least_slowest) {
    const Corner left = least_sum(candidates, least_slowest);
    best_ = left.point();
    const Ticks saving = best_.first - seconds_.least_sum();
    const Ticks last_cap = weight_ == 0 ? kNone - 1 : least_slowest + saving / weight_;
    if (left.next_cap <= last_cap) look_below(candidates, left.next_cap, last_cap);
    return best_.second;
  }

  WideTicks makespan(const SumAndSlowest& point) const { return point.first + WideTicks{weight_} * point.second; }

  // Considers the corner of the cap and the candidates to its left, from first_cap on. Returns the next cap.
  Ticks look_below(const Candidates& candidates, Ticks first_cap, Ticks cap) {
    const Corner corner = least_sum(candidates, cap);
    const SumAndSlowest& point = corner.point();
    if (point.first >= kNone) return corner.next_cap;
    if (std::pair(makespan(point), point.second) < std::pair(makespan(best_), best_.second)) best_ = point;
    if (first_cap < point.second) look_between(within(candidates, cap, corner.behind), first_cap, point);
    return corner.next_cap;
  }

  // Considers the candidates whose slowest stage takes at least first_cap and less than that of `right`. Their sums are
  // greater than that of `right`.
  void look_between(Candidates candidates, Ticks first_cap, const SumAndSlowest& right) {
    while (first_cap < right.second) {
      const WideTicks useful_sum = makespan(best_) - WideTicks{weight_} * first_cap;
      if (right.first >= useful_sum) return;
      candidates = up_to(candidates, useful_sum);
      Ticks last_cap = right.second - 1;
      if (weight_ > 0) {
        last_cap = static_cast<Ticks>(std::min<WideTicks>(last_cap, (makespan(best_) - right.first - 1) / weight_));
      }
      first_cap = look_below(candidates, first_cap, first_cap + (last_cap - first_cap) / 2);
    }
  }

  // The partition of the least sum within the cap; of several the least sum of squares, then the shortest first stages.
  std::vector<int> most_even(const Candidates& candidates, Ticks cap) const {
    struct Best {
      Ticks sum;
      WideTicks squares;
      std::size_t next;  // index of the next stage's begin
    };
    const auto best = [&](const Stages& stages, const Best* rest) {
      Best least = {kNone, 0, 0};
      visit_within(cap, stages, [&](std::size_t index, Ticks ticks) {
        const Ticks sum = ticks + rest[index].sum;
        if (sum > least.sum) return;
        const WideTicks squares = WideTicks{ticks} * ticks + rest[index].squares;
        if (sum < least.sum || squares < least.squares) least = {sum, squares, index};
      });
      return least;
    };
    const auto values = sweep<Best>(candidates, {0, 0, 0}, best);
    std::vector<int> layers_per_stage;
    std::size_t index = 0;
    for (std::size_t stage = 0; stage + 1 < candidates.size(); ++stage) {
      const int begin = candidates[stage].layer[index];
      index = values[stage][index].next;
      layers_per_stage.push_back(candidates[stage + 1].layer[index] - begin);
    }
    return layers_per_stage;
  }

  const IntervalSeconds& seconds_;
  const std::vector<const std::vector<int>*> furthest_end_;
  const Ticks weight_;
  SumAndSlowest best_{};
};

}  // namespace

void detail::check_layers_per_stage(const std::vector<int>& layers_per_stage, std::size_t num_layers) {
  for (std::size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    require(layers_per_stage[stage] >= 1, "stage {} has {} layers; expected at least 1", stage,
            layers_per_stage[stage]);
  }
  const std::int64_t sum = std::accumulate(layers_per_stage.begin(), layers_per_stage.end(), std::int64_t{0});
  require(sum == static_cast<std::int64_t>(num_layers),
          "the stages have {} layers together ({}), and the profile has {}", sum, fmt::join(layers_per_stage, " + "),
          num_layers);
}

void detail::add_up(Partition& partition, int num_micro_batches) {
  double sum = 0;
  partition.slowest_seconds = 0;
  for (const PartitionStage& stage : partition.stages) {
    partition.slowest_seconds = std::max(partition.slowest_seconds, stage.seconds);
    sum += stage.seconds;
  }
  partition.makespan_seconds = sum + (num_micro_batches - 1) * partition.slowest_seconds;
}

Partition detail::partition_of(const Profile& profile, const std::vector<int>& layers_per_stage,
                               const PartitionOptions& options) {
  check(profile, options);
  require(static_cast<int>(layers_per_stage.size()) == options.num_stages,
          "layers_per_stage has {} entries for {} stages; expected one per stage", layers_per_stage.size(),
          options.num_stages);
  check_layers_per_stage(layers_per_stage, profile.layers.size());
  return describe(layers_per_stage, IntervalSeconds(profile, options), IntervalBytes(profile, options.optimizer_slots),
                  options);
}

Partition partition(const Profile& profile, const PartitionOptions& options) {
  check(profile, options);
  const IntervalSeconds seconds(profile, options);
  const IntervalBytes bytes(profile, options.optimizer_slots);
  const std::vector<std::vector<Live>> live = live_of(options, options.num_stages);
  const std::vector<int> to_the_end(profile.layers.size(), static_cast<int>(profile.layers.size()));
  const std::vector<std::int64_t> limits = limits_of(options);
  FurthestEnds furthest(bytes);
  std::vector<const std::vector<int>*> furthest_end;
  for (int stage = 0; stage < options.num_stages; ++stage) {
    const bool is_limited = limits[stage] != kNoMemoryLimit;
    furthest_end.push_back(is_limited ? &furthest.of(live[stage], limits[stage]) : &to_the_end);
  }
  const std::vector<int> layers_per_stage =
      PartitionSearch(seconds, std::move(furthest_end), options.num_micro_batches).layers_per_stage(options.objective);
  if (layers_per_stage.empty()) fail_infeasible(bytes, options, limits);
  return describe(layers_per_stage, seconds, bytes, options);
}

}  // namespace gpipe
