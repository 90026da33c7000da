#include "gpipe/simulate/plan_trials.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpipe/schedule/liveness.h"
#include "gpipe/simulate/forecast.h"

namespace gpipe {
namespace {

constexpr Recompute kModes[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};

// What is tried for one schedule, in simulated actions: some tenths of a second.
constexpr std::int64_t kMaxActions = 2'000'000;

// All ways to give each of `count` stages a mode, or the same to all if that were too many.
std::vector<std::vector<Recompute>> combinations(int count) {
  constexpr int kMost = 4;
  std::vector<std::vector<Recompute>> combos;
  if (count > kMost) {
    for (const Recompute mode : kModes) combos.emplace_back(count, mode);
    return combos;
  }
  combos.emplace_back();
  for (int stage = 0; stage < count; ++stage) {
    std::vector<std::vector<Recompute>> longer;
    for (const std::vector<Recompute>& combo : combos) {
      for (const Recompute mode : kModes) {
        longer.push_back(combo);
        longer.back().push_back(mode);
      }
    }
    combos = std::move(longer);
  }
  return combos;
}

}  // namespace

double recompute_share(Recompute mode, int num_micro_batches) {
  if (mode == Recompute::kNever) return 0;
  return mode == Recompute::kAlways ? 1 : 1 - 1.0 / num_micro_batches;
}

bool is_faster(double seconds, double than_seconds) {
  constexpr double kRounding = 1e-9;
  return seconds < than_seconds * (1 - kRounding);
}

const LongSchedule& RecomputedSchedules::with(const std::vector<Recompute>& modes) {
  constexpr std::size_t kMost = 64;
  const auto found = by_modes_.find(modes);
  if (found != by_modes_.end()) return found->second;
  if (by_modes_.size() == kMost) by_modes_.clear();
  return by_modes_.emplace(modes, with_recompute(base_, modes)).first->second;
}

PlanTrials::PlanTrials(const Profile& profile, const PlanOptions& options)
    : profile_(profile),
      options_(options),
      schedules_(make_long_schedule(options.schedule, options.num_stages, options.num_micro_batches, options.chunks)),
      base_(schedules_.base()) {
  std::vector<int> num_stages(base_.num_workers(), 0);
  for (const int worker : base_.written.worker_of_stage) index_on_worker_.push_back(num_stages[worker]++);
  combos_ = combinations(*std::max_element(num_stages.begin(), num_stages.end()));
}

Costs PlanTrials::costs_of(const std::vector<int>& layers_per_stage) const {
  Costs costs = stage_costs(profile_, layers_per_stage, options_.link, options_.optimizer_slots);
  costs.worker_speed = options_.worker_speed;
  return costs;
}

std::optional<Trial> PlanTrials::run(const std::vector<int>& layers_per_stage, const std::vector<Recompute>& modes) {
  return run(layers_per_stage, costs_of(layers_per_stage), modes);
}

std::optional<Trial> PlanTrials::run(const std::vector<int>& layers_per_stage) {
  const Costs costs = costs_of(layers_per_stage);
  if (!options_.recompute_by_stage.empty()) return run(layers_per_stage, costs, options_.recompute_by_stage);
  if (options_.recompute != Recompute::kAuto) {
    return run(layers_per_stage, costs, std::vector<Recompute>(base_.num_stages(), options_.recompute));
  }
  const std::optional<std::vector<Recompute>> modes = lightest_modes(costs);
  return modes ? run(layers_per_stage, costs, *modes) : std::nullopt;
}

std::optional<Trial> PlanTrials::run(const std::vector<int>& layers_per_stage, const Costs& costs,
                                     const std::vector<Recompute>& modes) {
  const LongSchedule& schedule = schedules_.with(modes);
  Trial trial = {layers_per_stage, modes, 0, peak_bytes_by_worker(schedule, stage_bytes(costs))};
  for (const std::int64_t bytes : trial.peak_bytes) {
    if (options_.memory_limit_bytes && bytes > *options_.memory_limit_bytes) return std::nullopt;
  }
  trial.step_seconds = forecast_seconds(schedule, costs);
  return trial;
}

// What a worker holds depends on the modes of its own stages only: each combination is tried on all workers at once.
std::optional<std::vector<Recompute>> PlanTrials::lightest_modes(const Costs& costs) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<Recompute> modes(base_.num_stages(), Recompute::kNever);
  if (!options_.memory_limit_bytes) return modes;
  const std::vector<StageBytes> bytes = stage_bytes(costs);
  std::vector<double> least(base_.num_workers(), kNone);
  for (const std::vector<Recompute>& combo : combos_) {
    std::vector<Recompute> tried;
    for (const int index : index_on_worker_) tried.push_back(combo[index]);
    std::vector<double> seconds(base_.num_workers(), 0);
    for (int stage = 0; stage < base_.num_stages(); ++stage) {
      seconds[base_.written.worker_of_stage[stage]] +=
          recompute_share(tried[stage], options_.num_micro_batches) * costs.stages[stage].recompute_seconds;
    }
    const std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedules_.with(tried), bytes);
    std::vector<bool> takes(base_.num_workers());
    for (int worker = 0; worker < base_.num_workers(); ++worker) {
      takes[worker] = peaks[worker] <= *options_.memory_limit_bytes && seconds[worker] < least[worker];
      if (takes[worker]) least[worker] = seconds[worker];
    }
    for (int stage = 0; stage < base_.num_stages(); ++stage) {
      if (takes[base_.written.worker_of_stage[stage]]) modes[stage] = tried[stage];
    }
    if (std::all_of(least.begin(), least.end(), [](double worker) { return worker == 0; })) break;
  }
  if (std::any_of(least.begin(), least.end(), [](double worker) { return worker == kNone; })) return std::nullopt;
  return modes;
}

std::int64_t PlanTrials::actions_a_trial() const {
  const bool chooses = options_.memory_limit_bytes && options_.recompute == Recompute::kAuto;
  return base_.written.num_actions() * (2 + (chooses ? static_cast<std::int64_t>(combos_.size()) : 0));
}

bool PlanTrials::are_few() const {
  const std::int64_t most = kMaxActions / actions_a_trial();
  const std::int64_t gaps = static_cast<std::int64_t>(profile_.layers.size()) - 1;
  const std::int64_t cuts = std::min<std::int64_t>(base_.num_stages() - 1, gaps - (base_.num_stages() - 1));
  std::int64_t partitions = 1;
  for (std::int64_t cut = 0; cut < cuts; ++cut) {
    partitions = partitions * (gaps - cut) / (cut + 1);
    if (partitions > most) return false;
  }
  return partitions <= most;
}

void PlanTrials::try_all(std::vector<int>& layers_per_stage, int num_layers, int num_stages,
                         std::optional<Trial>& best) {
  if (num_stages == 1) {
    layers_per_stage.push_back(num_layers);
    std::optional<Trial> trial = run(layers_per_stage);
    layers_per_stage.pop_back();
    if (trial && (!best || is_faster(trial->step_seconds, best->step_seconds))) best = std::move(trial);
    return;
  }
  for (int first = 1; first <= num_layers - (num_stages - 1); ++first) {
    layers_per_stage.push_back(first);
    try_all(layers_per_stage, num_layers - first, num_stages - 1, best);
    layers_per_stage.pop_back();
  }
}

// Moves one boundary by one layer, where that helps most, as long as it does.
void PlanTrials::climb(Trial& best, std::int64_t& actions_left) {
  for (bool is_better = true; is_better;) {
    is_better = false;
    const std::vector<int> start = best.layers_per_stage;
    for (int stage = 0; stage + 1 < base_.num_stages(); ++stage) {
      for (const int step : {-1, 1}) {
        std::vector<int> moved = start;
        moved[stage] += step;
        moved[stage + 1] -= step;
        if (moved[stage] == 0 || moved[stage + 1] == 0) continue;
        actions_left -= actions_a_trial();
        if (actions_left < 0) return;
        std::optional<Trial> trial = run(moved);
        if (!trial || !is_faster(trial->step_seconds, best.step_seconds)) continue;
        best = *std::move(trial);
        is_better = true;
      }
    }
  }
}

std::optional<Trial> PlanTrials::improve(std::optional<Trial> found, std::vector<Trial> seeds) {
  if (are_few()) {
    std::vector<int> layers_per_stage;
    try_all(layers_per_stage, static_cast<int>(profile_.layers.size()), base_.num_stages(), found);
    return found;
  }
  constexpr std::size_t kMostSeeds = 6;
  std::stable_sort(seeds.begin(), seeds.end(),
                   [](const Trial& a, const Trial& b) { return a.step_seconds < b.step_seconds; });
  if (seeds.size() > kMostSeeds) seeds.resize(kMostSeeds);
  std::int64_t actions_left = kMaxActions;
  for (Trial& seed : seeds) {
    climb(seed, actions_left);
    if (is_faster(seed.step_seconds, found->step_seconds)) found = std::move(seed);
  }
  return found;
}

}  // namespace gpipe
