#include "gpipe/plan/partition_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

namespace gpipe {
namespace {

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

Stages stages_from(const PartitionChoices& choices, const Candidates& candidates, std::size_t stage, int begin) {
  const std::vector<int>& ends = candidates[stage + 1].layer;
  const auto first = std::upper_bound(ends.begin(), ends.end(), begin);
  const auto last = std::upper_bound(first, ends.end(), (*choices.furthest_end[stage])[begin]);
  return {choices.seconds.row(static_cast<int>(stage), begin), ends.data(),
          static_cast<std::size_t>(first - ends.begin()), static_cast<std::size_t>(last - ends.begin())};
}

// For each stage and each layer it may begin at, the best that it and the stages behind it can do: best(stages, rest),
// where rest[index] is the best from stages.ends[index] on.
template <typename Value, typename Best>
std::vector<std::vector<Value>> sweep(const PartitionChoices& choices, const Candidates& candidates,
                                      const Value& nothing_left, const Best& best) {
  std::vector<std::vector<Value>> values(candidates.size());
  values.back().assign(candidates.back().size(), nothing_left);
  for (std::size_t stage = candidates.size() - 1; stage-- > 0;) {
    for (const int begin : candidates[stage].layer) {
      values[stage].push_back(best(stages_from(choices, candidates, stage, begin), values[stage + 1].data()));
    }
  }
  return values;
}

// The least max(t); kNone if there is no partition.
Ticks least_slowest(const PartitionChoices& choices, const Candidates& candidates) {
  const auto best = [](const Stages& stages, const Ticks* rest) {
    Ticks least = kNone;
    for (std::size_t index = stages.first; index < stages.last; ++index) {
      if (stages.row.compute_ticks(stages.ends[index]) >= least) break;
      least = std::min(least, std::max(stages.row.ticks(stages.ends[index]), rest[index]));
    }
    return least;
  };
  return sweep<Ticks>(choices, candidates, 0, best)[0][0];
}

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
  Ticks sum = kNone;  // kNone if no candidate stays within the cap
  Ticks slowest = kNone;
  Ticks next_cap = kNone;  // any cap below this gives the same corner
  Behind behind;           // from each stage and layer on
};

Corner least_sum(const PartitionChoices& choices, const Candidates& candidates, Ticks cap) {
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
  corner.behind = sweep<SumAndSlowest>(choices, candidates, {0, 0}, best);
  std::tie(corner.sum, corner.slowest) = corner.behind[0][0];
  return corner;
}

// The candidates that stay within the cap, with the bounds that follow from it.
Candidates within(const PartitionChoices& choices, const Candidates& candidates, Ticks cap, const Behind& behind) {
  Candidates kept(candidates.size());
  std::vector<Ticks> before = {0};
  for (std::size_t stage = 0; stage < candidates.size(); ++stage) {
    std::vector<Ticks> next_before(stage + 1 < candidates.size() ? candidates[stage + 1].size() : 0, kNone);
    for (std::size_t index = 0; index < candidates[stage].size(); ++index) {
      if (before[index] >= kNone || behind[stage][index].first >= kNone) continue;
      const int begin = candidates[stage].layer[index];
      kept[stage].add(begin, before[index], behind[stage][index].first);
      if (next_before.empty()) continue;
      visit_within(cap, stages_from(choices, candidates, stage, begin), [&](std::size_t end, Ticks ticks) {
        next_before[end] = std::min(next_before[end], before[index] + ticks);
      });
    }
    before.swap(next_before);
  }
  return kept;
}

// Finds the candidate of the least sum + (M-1)·slowest; of several, the one with the least slowest stage.
//
// The least sum within a cap falls in steps as the cap grows. least_sum finds the corner of a step; a partition between
// two corners has a greater sum than the right one and a greater slowest stage than the left one. It is looked for only
// if that could beat the best so far, and only among the begins of stages whose bounds could.
//
//   sum │ ×
//       │ └──×
//       │    └─────×────
//       └──────────────── cap
class MakespanSearch {
 public:
  MakespanSearch(const PartitionChoices& choices, int num_micro_batches)
      : choices_(choices), weight_(num_micro_batches - 1) {}

  // The slowest stage of the best, given the least there is.
  Ticks best_slowest(const Candidates& candidates, Ticks least_slowest) {
    const Corner left = least_sum(choices_, candidates, least_slowest);
    best_ = {left.sum, left.slowest};
    const Ticks saving = left.sum - choices_.seconds.least_sum();
    const Ticks last_cap = weight_ == 0 ? kNone - 1 : least_slowest + saving / weight_;
    if (left.next_cap <= last_cap) look_below(candidates, left.next_cap, last_cap);
    return best_.second;
  }

 private:
  WideTicks makespan(const SumAndSlowest& point) const { return point.first + WideTicks{weight_} * point.second; }

  // Considers the corner of the cap and the candidates to its left, from first_cap on. Returns the next cap.
  Ticks look_below(const Candidates& candidates, Ticks first_cap, Ticks cap) {
    const Corner corner = least_sum(choices_, candidates, cap);
    if (corner.sum >= kNone) return corner.next_cap;
    const SumAndSlowest point = {corner.sum, corner.slowest};
    const WideTicks best = makespan(best_);
    if (makespan(point) < best || (makespan(point) == best && point.second < best_.second)) best_ = point;
    if (first_cap < corner.slowest) look_between(within(choices_, candidates, cap, corner.behind), first_cap, point);
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

  const PartitionChoices& choices_;
  Ticks weight_;
  SumAndSlowest best_{};
};

// The partition of the least sum within the cap; of several the least sum of squares, then the shortest first stages.
std::vector<int> most_even(const PartitionChoices& choices, const Candidates& candidates, Ticks cap) {
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
  const auto values = sweep<Best>(choices, candidates, {0, 0, 0}, best);
  std::vector<int> layers_per_stage;
  std::size_t index = 0;
  for (std::size_t stage = 0; stage + 1 < candidates.size(); ++stage) {
    const int begin = candidates[stage].layer[index];
    index = values[stage][index].next;
    layers_per_stage.push_back(candidates[stage + 1].layer[index] - begin);
  }
  return layers_per_stage;
}

}  // namespace

std::vector<int> best_layers_per_stage(const PartitionChoices& choices, Objective objective, int num_micro_batches) {
  const Candidates all = all_partitions(choices.seconds.num_layers(), choices.seconds.num_stages());
  Ticks slowest = least_slowest(choices, all);
  if (slowest >= kNone) return {};
  if (objective == Objective::kMakespan) {
    slowest = MakespanSearch(choices, num_micro_batches).best_slowest(all, slowest);
  }
  return most_even(choices, all, slowest);
}

}  // namespace gpipe
