#include "gpipe/simulate/plan_trials.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/intervals.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/rematerialize.h"
#include "gpipe/plan/rematerializer.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/simulate/forecast.h"

namespace gpipe::detail {
namespace {

constexpr Recompute kModes[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};

// What is tried for one schedule, in simulated actions: some tenths of a second.
constexpr std::int64_t kMaxActions = 2'000'000;
// And in rematerializers that are made, in cubes of their layers: about as long.
constexpr std::int64_t kMaxWork = 400'000;

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

// The part of a stage's micro-batches that it recomputes.
double recompute_share(Recompute mode, int num_micro_batches) {
  if (mode == Recompute::kNever) return 0;
  return mode == Recompute::kAlways ? 1 : 1 - 1.0 / num_micro_batches;
}

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

// Least slowest stage, then least sum.
std::vector<int> cut(const PrefixSeconds& sums, const std::vector<StageModes>& stages) {
  const int num_layers = static_cast<int>(sums.forward.size()) - 1;
  using Rank = std::pair<double, double>;
  std::vector<Rank> least(num_layers + 1, Rank{kEndless, kEndless});
  least[0] = {0, 0};
  std::vector<std::vector<int>>
      cuts;  // [stage][end]: the first layer of the stage, if it and those before it end there
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
  if (least[num_layers].first == kEndless) return {};
  std::vector<int> layers_per_stage(stages.size());
  for (int stage = static_cast<int>(stages.size()) - 1, end = num_layers; stage >= 0; --stage) {
    const int begin = cuts[stage][end];
    layers_per_stage[stage] = end - begin;
    end = begin;
  }
  return layers_per_stage;
}

// Moves one boundary by one layer, where that helps most, as long as it does.
template <typename Run>
void climb(Trial& best, const Run& run) {
  for (bool is_better = true; is_better;) {
    is_better = false;
    const std::vector<int> start = best.layers_per_stage;
    for (std::size_t stage = 0; stage + 1 < start.size(); ++stage) {
      for (const int step : {-1, 1}) {
        std::vector<int> moved = start;
        moved[stage] += step;
        moved[stage + 1] -= step;
        if (moved[stage] == 0 || moved[stage + 1] == 0) continue;
        std::optional<Trial> trial = run(moved);
        if (!trial || !is_faster(trial->step_seconds, best.step_seconds)) continue;
        best = *std::move(trial);
        is_better = true;
      }
    }
  }
}

}  // namespace

bool is_faster(double seconds, double than_seconds) {
  constexpr double kRounding = 1e-9;
  return seconds < than_seconds * (1 - kRounding);
}

void keep_faster(std::optional<Trial>& best, std::optional<Trial> trial) {
  if (trial && (!best || is_faster(trial->step_seconds, best->step_seconds))) best = std::move(trial);
}

PlanTrials::PlanTrials(const Profile& profile, const PlanOptions& options)
    : profile_(profile),
      options_(options),
      base_(make_long_schedule(options.schedule, options.num_stages, options.num_micro_batches, options.chunks)) {
  std::vector<int> num_stages(base_.num_workers(), 0);
  for (const int worker : base_.written.worker_of_stage) index_on_worker_.push_back(num_stages[worker]++);
  combos_ = combinations(*std::max_element(num_stages.begin(), num_stages.end()));
}

const LongSchedule& PlanTrials::with(const std::vector<Recompute>& modes) {
  constexpr std::size_t kMost = 64;
  const auto found = by_modes_.find(modes);
  if (found != by_modes_.end()) return found->second;
  if (by_modes_.size() == kMost) by_modes_.clear();
  return by_modes_.emplace(modes, with_recompute(base_, modes)).first->second;
}

Costs PlanTrials::costs_of(const std::vector<int>& layers_per_stage) const {
  Costs costs = stage_costs(profile_, layers_per_stage, options_.link, options_.optimizer_slots);
  costs.workers = options_.workers;
  return costs;
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
  const LongSchedule& schedule = with(modes);
  Trial trial = {layers_per_stage, modes, 0, peak_bytes_by_worker(schedule, stage_bytes(costs))};
  for (int worker = 0; worker < base_.num_workers(); ++worker) {
    if (trial.peak_bytes[worker] > options_.memory_limit_of(worker)) return std::nullopt;
  }
  trial.step_seconds = forecast_seconds(schedule, costs);
  return trial;
}

// What a worker holds depends on the modes of its own stages only: each combination is tried on all workers at once.
std::optional<std::vector<Recompute>> PlanTrials::lightest_modes(const Costs& costs) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<Recompute> modes(base_.num_stages(), Recompute::kNever);
  if (!options_.has_memory_limit()) return modes;
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
    const std::vector<std::int64_t> peaks = peak_bytes_by_worker(with(tried), bytes);
    std::vector<bool> takes(base_.num_workers());
    for (int worker = 0; worker < base_.num_workers(); ++worker) {
      takes[worker] = peaks[worker] <= options_.memory_limit_of(worker) && seconds[worker] < least[worker];
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
  const bool chooses = options_.has_memory_limit() && options_.recompute == Recompute::kAuto;
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

std::optional<Trial> PlanTrials::improve(std::optional<Trial> found, std::vector<Trial> seeds) {
  if (are_few()) {
    std::vector<char> is_cut(profile_.layers.size() - 1);  // behind each layer but the last
    std::fill_n(is_cut.begin(), base_.num_stages() - 1, 1);
    do {
      std::vector<int> layers_per_stage = {1};
      for (const char cut : is_cut) {
        if (cut != 0) layers_per_stage.push_back(0);
        ++layers_per_stage.back();
      }
      keep_faster(found, run(layers_per_stage));
    } while (std::prev_permutation(is_cut.begin(), is_cut.end()));
    return found;
  }
  constexpr std::size_t kMostSeeds = 6;
  std::stable_sort(seeds.begin(), seeds.end(),
                   [](const Trial& a, const Trial& b) { return a.step_seconds < b.step_seconds; });
  if (seeds.size() > kMostSeeds) seeds.resize(kMostSeeds);
  std::int64_t actions_left = kMaxActions;
  for (Trial& seed : seeds) {
    climb(seed, [&](const std::vector<int>& layers_per_stage) {
      actions_left -= actions_a_trial();
      return actions_left < 0 ? std::nullopt : run(layers_per_stage);
    });
    keep_faster(found, std::move(seed));
  }
  return found;
}

std::vector<int> PlanTrials::mixed_layers_per_stage() const {
  const IntervalBytes bytes(profile_, options_.optimizer_slots);
  FurthestEnds furthest(bytes);
  const int chunks = base_.num_stages() / base_.num_workers();
  std::vector<StageModes> stages(base_.num_stages());
  for (const Recompute mode : kModes) {
    const PartitionOptions known = options_for_schedule({}, with_recompute(base_, mode));
    for (int stage = 0; stage < base_.num_stages(); ++stage) {
      stages[stage].forwards.push_back(1 + known.recompute_share[stage]);
      const int worker = base_.written.worker_of_stage[stage];
      stages[stage].furthest_end.push_back(&furthest.of(known.live[stage], options_.memory_limit_of(worker) / chunks));
      stages[stage].speed = speed_of(options_.workers, worker);
    }
  }
  PrefixSeconds sums;
  for (const LayerProfile& layer : profile_.layers) {
    sums.forward.push_back(sums.forward.back() + layer.forward_seconds);
    sums.backward.push_back(sums.backward.back() + layer.backward_seconds);
  }
  return cut(sums, stages);
}

namespace {

// See Note [Rematerialized stages].
class RematerializedTrials {
 public:
  RematerializedTrials(const Profile& profile, const PlanOptions& options)
      : profile_(profile),
        options_(options),
        plain_(profile, options),
        base_(plain_.base()),
        can_drop_(!base_.written.splits_backward()),
        stages_of_worker_(base_.num_workers()) {
    for (int stage = 0; stage < base_.num_stages(); ++stage) {
      stages_of_worker_[base_.written.worker_of_stage[stage]].push_back(stage);
    }
    for (const Recompute mode : kModes) {
      live_[mode] = peak_live_by_stage(with_recompute(base_, mode));
    }
  }

  // With these layers per stage; empty if a worker does not fit, or if too many layers were looked at already.
  std::optional<Trial> run(const std::vector<int>& layers_per_stage) {
    layers_per_stage_ = layers_per_stage;
    begins_ = {0};
    for (const int num_layers : layers_per_stage) begins_.push_back(begins_.back() + num_layers);
    costs_ = plain_.costs_of(layers_per_stage);
    const std::optional<Trial> recomputed = plain_.run(layers_per_stage);
    std::vector<std::vector<Choice>> by_worker;
    std::vector<Setting> chosen(base_.num_stages());
    const auto choose = [&](std::vector<Setting>& settings, int worker, const Choice& of_worker) {
      for (std::size_t index = 0; index < of_worker.size(); ++index) {
        settings[stages_of_worker_[worker][index]] = of_worker[index];
      }
    };
    for (int worker = 0; worker < base_.num_workers(); ++worker) {
      by_worker.push_back(choices(worker, recomputed));
      if (by_worker.back().empty()) return std::nullopt;
      choose(chosen, worker, by_worker.back().front());
    }
    std::optional<Trial> best = simulated(chosen);
    for (int worker = 0; worker < base_.num_workers(); ++worker) {
      for (std::size_t choice = 1; choice < by_worker[worker].size(); ++choice) {
        if (num_actions_ > kMaxActions) return best;
        std::vector<Setting> other = chosen;
        choose(other, worker, by_worker[worker][choice]);
        std::optional<Trial> trial = simulated(other);
        if (!trial || (best && !is_faster(trial->step_seconds, best->step_seconds))) continue;
        best = std::move(trial);
        chosen = std::move(other);
      }
    }
    return best;
  }

  void improve(Trial& found) {
    climb(found, [this](const std::vector<int>& layers_per_stage) {
      const bool has_time = work_ < kMaxWork && num_actions_ < kMaxActions;
      return has_time ? run(layers_per_stage) : std::nullopt;
    });
  }

 private:
  // What a stage does and costs.
  struct Setting {
    Recompute mode = Recompute::kNever;
    Rematerialization rematerialization;
    StageCosts costs;
    double recompute_seconds = 0;  // of a micro-batch
  };
  using Choice = std::vector<Setting>;  // of the stages of a worker

  Setting keeping(int stage, Recompute mode) const {
    const StageCosts& costs = costs_.stages[stage];
    return {mode, {}, costs, recompute_share(mode, options_.num_micro_batches) * costs.recompute_seconds};
  }

  // With so much of the worker's limit for the stage; empty if that is too little.
  std::optional<Setting> dropping(int stage, Recompute mode, std::int64_t share_bytes) {
    const int begin = begins_[stage];
    const int end = begins_[stage + 1];
    if (!can_drop_ || uses_skips(profile_, begin, end)) return std::nullopt;
    int num_held = 1;
    int num_inputs = 1;
    for (const Live& live : live_[mode][stage]) {
      num_held = std::max(num_held, live.activations);
      num_inputs = std::max(num_inputs, live.activations + live.inputs);
    }
    const StageCosts& costs = costs_.stages[stage];
    // In doubles, because a profile may claim anything: what does not fit by far need not be exact.
    const double room = static_cast<double>(share_bytes) - static_cast<double>(costs.static_bytes) -
                        static_cast<double>(costs.input_bytes) * num_inputs;
    if (room < 0) return std::nullopt;
    try {
      const std::vector<RematerializationCosts> layers = rematerialization_costs(profile_, begin, end);
      auto found = rematerializers_.find({begin, end});
      if (found == rematerializers_.end()) {
        const std::int64_t size = std::min(end - begin, 64);
        work_ += size * size * size;
        if (work_ > kMaxWork && !rematerializers_.empty()) return std::nullopt;
        found = rematerializers_.emplace(std::make_pair(begin, end), Rematerializer(layers)).first;
      }
      const double enough = 0x1p62;  // no sum of a profile's bytes needs more, and more might be no number of bytes
      Setting result = keeping(stage, mode);
      result.rematerialization =
          found->second.plan(static_cast<std::int64_t>(std::min(room, enough)), num_held).rematerialization;
      result.costs = with_rematerialization(costs, layers, result.rematerialization);
      result.recompute_seconds += result.costs.backward_seconds - costs.backward_seconds;
      return result;
    } catch (const InfeasibleError&) {
      return std::nullopt;
    } catch (const InvalidArgument&) {  // bytes that add up to too much
      return std::nullopt;
    }
  }

  // What a worker holds depends on the settings of its own stages only.
  bool fits(int worker, const std::vector<Setting>& settings) {
    std::vector<Recompute> modes(base_.num_stages(), Recompute::kNever);
    std::vector<StageBytes> bytes(base_.num_stages());
    for (std::size_t index = 0; index < settings.size(); ++index) {
      modes[stages_of_worker_[worker][index]] = settings[index].mode;
      bytes[stages_of_worker_[worker][index]] = stage_bytes(settings[index].costs);
    }
    return peak_bytes_of_worker(plain_.with(modes), bytes, worker) <= options_.memory_limit_of(worker);
  }

  // Empty if it does not fit.
  std::optional<Choice> same_for_all(int worker, Recompute mode, bool drops) {
    const std::vector<int>& stages = stages_of_worker_[worker];
    Choice choice;
    for (const int stage : stages) {
      const std::int64_t share_bytes = options_.memory_limit_of(worker) / static_cast<std::int64_t>(stages.size());
      std::optional<Setting> one = drops ? dropping(stage, mode, share_bytes) : keeping(stage, mode);
      if (!one) return std::nullopt;
      choice.push_back(*std::move(one));
    }
    if (!fits(worker, choice)) return std::nullopt;
    return choice;
  }

  // Stage by stage, gives it as much as the others leave.
  void drop_instead(int worker, Choice& choice) {
    for (std::size_t index = 0; index < choice.size(); ++index) {
      if (choice[index].recompute_seconds == 0) continue;
      Choice tried = choice;
      std::int64_t low = 0;
      std::int64_t high = options_.memory_limit_of(worker);
      for (int step = 0; step < 8; ++step) {
        const std::int64_t middle = low + (high - low) / 2;
        std::optional<Setting> setting = dropping(stages_of_worker_[worker][index], Recompute::kNever, middle);
        if (!setting) {
          low = middle;
          continue;
        }
        tried[index] = *std::move(setting);
        const bool does_fit = fits(worker, tried);
        (does_fit ? low : high) = middle;
        if (does_fit && tried[index].recompute_seconds < choice[index].recompute_seconds) choice = tried;
      }
    }
  }

  // All that fit, those with the least recompute first. `recomputed` has the modes that do without dropping.
  std::vector<Choice> choices(int worker, const std::optional<Trial>& recomputed) {
    if (const std::optional<Choice> nothing = same_for_all(worker, Recompute::kNever, false)) return {*nothing};
    std::vector<Choice> result;
    for (const Recompute mode : kModes) {
      for (const bool drops : {false, true}) {
        std::optional<Choice> choice = same_for_all(worker, mode, drops);
        if (choice) result.push_back(*std::move(choice));
      }
    }
    if (recomputed && stages_of_worker_[worker].size() > 1) {
      Choice mixed;
      for (const int stage : stages_of_worker_[worker]) mixed.push_back(keeping(stage, recomputed->modes[stage]));
      result.push_back(mixed);
      drop_instead(worker, mixed);
      result.push_back(std::move(mixed));
    }
    const auto seconds = [](const Choice& choice) {
      double sum = 0;
      for (const Setting& setting : choice) sum += setting.recompute_seconds;
      return sum;
    };
    std::stable_sort(result.begin(), result.end(),
                     [&](const Choice& a, const Choice& b) { return seconds(a) < seconds(b); });
    return result;
  }

  std::optional<Trial> simulated(const std::vector<Setting>& settings) {
    num_actions_ += base_.written.num_actions();
    Costs costs = costs_;
    std::vector<Recompute> modes;
    std::vector<Rematerialization> rematerialization;
    bool drops = false;
    for (int stage = 0; stage < base_.num_stages(); ++stage) {
      costs.stages[stage] = settings[stage].costs;
      modes.push_back(settings[stage].mode);
      rematerialization.push_back(settings[stage].rematerialization);
      drops = drops || !settings[stage].rematerialization.empty();
    }
    std::optional<Trial> trial = plain_.run(layers_per_stage_, costs, modes);
    if (trial && drops) trial->rematerialization = std::move(rematerialization);
    return trial;
  }

  const Profile& profile_;
  const PlanOptions& options_;
  PlanTrials plain_;
  const LongSchedule& base_;  // without recompute
  bool can_drop_ = true;
  std::vector<std::vector<int>> stages_of_worker_;
  std::map<Recompute, std::vector<std::vector<Live>>> live_;  // by mode and stage
  std::int64_t work_ = 0;                                     // so far, on rematerializers
  std::int64_t num_actions_ = 0;                              // so far, simulated
  // Of the partition at hand.
  std::vector<int> layers_per_stage_;
  std::vector<int> begins_;  // the first layer of each stage, then the number of layers
  Costs costs_;
  std::map<std::pair<int, int>, Rematerializer> rematerializers_;  // by first layer and the one behind the last
};

}  // namespace

std::optional<Trial> fastest_rematerialized(const Profile& profile, const PlanOptions& options,
                                            const std::vector<std::vector<int>>& partitions) {
  RematerializedTrials trials(profile, options);
  std::optional<Trial> best;
  for (const std::vector<int>& layers_per_stage : partitions) keep_faster(best, trials.run(layers_per_stage));
  if (best) trials.improve(*best);
  return best;
}

}  // namespace gpipe::detail
