#include "gpipe/simulate/rematerialized_trials.h"

#include <algorithm>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/simulate/forecast.h"

namespace gpipe {
namespace {

// Of rematerializers that are made, in cubes of their layers: some tenths of a second.
constexpr std::int64_t kMaxWork = 400'000;
// Of actions that are simulated: about as long.
constexpr std::int64_t kMaxTriedActions = 2'000'000;

}  // namespace

RematerializedTrials::RematerializedTrials(const Profile& profile, const PlanOptions& options)
    : profile_(profile),
      options_(options),
      plain_(profile, options),
      schedules_(make_long_schedule(options.schedule, options.num_stages, options.num_micro_batches, options.chunks)),
      base_(schedules_.base()),
      can_drop_(!base_.written.splits_backward()),
      stages_of_worker_(base_.num_workers()) {
  for (int stage = 0; stage < base_.num_stages(); ++stage) {
    stages_of_worker_[base_.written.worker_of_stage[stage]].push_back(stage);
  }
  for (const Recompute mode : {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways}) {
    live_[mode] = peak_live_by_stage(with_recompute(base_, mode));
  }
}

std::optional<Rematerialization> RematerializedTrials::runs(int stage, Recompute mode, std::int64_t share_bytes) {
  const int begin = begins_[stage];
  const int end = begin + layers_per_stage_[stage];
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
    auto found = rematerializers_.find({begin, end});
    if (found == rematerializers_.end()) {
      const std::int64_t size = std::min(end - begin, 64);
      work_ += size * size * size;
      if (work_ > kMaxWork && !rematerializers_.empty()) return std::nullopt;
      found = rematerializers_
                  .emplace(std::make_pair(begin, end), Rematerializer(rematerialization_costs(profile_, begin, end)))
                  .first;
    }
    const double enough = 0x1p62;  // no sum of a profile's bytes needs more, and more might be no number of bytes
    return found->second.plan(static_cast<std::int64_t>(std::min(room, enough)), num_held).rematerialization;
  } catch (const InfeasibleError&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {  // bytes that add up to too much
    return std::nullopt;
  }
}

RematerializedTrials::Setting RematerializedTrials::keeping(int stage, Recompute mode) const {
  const StageCosts& costs = costs_.stages[stage];
  return {mode, {}, costs, recompute_share(mode, options_.num_micro_batches) * costs.recompute_seconds};
}

std::optional<RematerializedTrials::Setting> RematerializedTrials::dropping(int stage, Recompute mode,
                                                                            std::int64_t share_bytes) {
  const std::optional<Rematerialization> found = runs(stage, mode, share_bytes);
  if (!found) return std::nullopt;
  Setting result = keeping(stage, mode);
  const int begin = begins_[stage];
  result.rematerialization = *found;
  result.costs = with_rematerialization(
      result.costs, rematerialization_costs(profile_, begin, begin + layers_per_stage_[stage]), *found);
  result.recompute_seconds += result.costs.backward_seconds - costs_.stages[stage].backward_seconds;
  return result;
}

// What a worker holds depends on the settings of its own stages only.
bool RematerializedTrials::fits(int worker, const std::vector<Setting>& settings) {
  std::vector<Recompute> modes(base_.num_stages(), Recompute::kNever);
  std::vector<StageBytes> bytes(base_.num_stages());
  for (std::size_t index = 0; index < settings.size(); ++index) {
    modes[stages_of_worker_[worker][index]] = settings[index].mode;
    bytes[stages_of_worker_[worker][index]] = stage_bytes(settings[index].costs);
  }
  return peak_bytes_of_worker(schedules_.with(modes), bytes, worker) <= *options_.memory_limit_bytes;
}

std::optional<RematerializedTrials::Choice> RematerializedTrials::same_for_all(int worker, Recompute mode, bool drops) {
  const std::vector<int>& stages = stages_of_worker_[worker];
  Choice choice;
  for (const int stage : stages) {
    const std::int64_t share_bytes = *options_.memory_limit_bytes / static_cast<std::int64_t>(stages.size());
    std::optional<Setting> one = drops ? dropping(stage, mode, share_bytes) : keeping(stage, mode);
    if (!one) return std::nullopt;
    choice.push_back(*std::move(one));
  }
  if (!fits(worker, choice)) return std::nullopt;
  return choice;
}

// Stage by stage, gives it as much as the others leave.
void RematerializedTrials::drop_instead(int worker, Choice& choice) {
  for (std::size_t index = 0; index < choice.size(); ++index) {
    if (choice[index].recompute_seconds == 0) continue;
    Choice tried = choice;
    std::int64_t low = 0;
    std::int64_t high = *options_.memory_limit_bytes;
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

std::vector<RematerializedTrials::Choice> RematerializedTrials::choices(int worker,
                                                                        const std::optional<Trial>& recomputed) {
  if (const std::optional<Choice> nothing = same_for_all(worker, Recompute::kNever, false)) return {*nothing};
  std::vector<Choice> result;
  for (const Recompute mode : {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways}) {
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

Trial RematerializedTrials::simulated(const std::vector<Setting>& settings) {
  num_actions_ += base_.written.num_actions();
  Trial trial;
  trial.layers_per_stage = layers_per_stage_;
  Costs costs = costs_;
  bool drops = false;
  for (int stage = 0; stage < base_.num_stages(); ++stage) {
    trial.modes.push_back(settings[stage].mode);
    trial.rematerialization.push_back(settings[stage].rematerialization);
    costs.stages[stage] = settings[stage].costs;
    drops = drops || !settings[stage].rematerialization.empty();
  }
  if (!drops) trial.rematerialization.clear();
  const LongSchedule& schedule = schedules_.with(trial.modes);
  trial.step_seconds = forecast_seconds(schedule, costs);
  trial.peak_bytes = peak_bytes_by_worker(schedule, stage_bytes(costs));
  return trial;
}

std::optional<Trial> RematerializedTrials::run(const std::vector<int>& layers_per_stage) {
  layers_per_stage_ = layers_per_stage;
  begins_.clear();
  int layer = 0;
  for (const int num_layers : layers_per_stage) {
    begins_.push_back(layer);
    layer += num_layers;
  }
  costs_ = stage_costs(profile_, layers_per_stage, options_.link, options_.optimizer_slots);
  costs_.worker_speed = options_.worker_speed;
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
  Trial best = simulated(chosen);
  for (int worker = 0; worker < base_.num_workers(); ++worker) {
    for (std::size_t choice = 1; choice < by_worker[worker].size(); ++choice) {
      if (num_actions_ > kMaxTriedActions) return best;
      std::vector<Setting> other = chosen;
      choose(other, worker, by_worker[worker][choice]);
      Trial trial = simulated(other);
      if (!is_faster(trial.step_seconds, best.step_seconds)) continue;
      best = std::move(trial);
      chosen = std::move(other);
    }
  }
  return best;
}

void RematerializedTrials::climb(std::optional<Trial>& found) {
  const auto has_time = [this] { return work_ < kMaxWork && num_actions_ < kMaxTriedActions; };
  for (bool is_better = found.has_value(); is_better;) {
    is_better = false;
    const std::vector<int> start = found->layers_per_stage;
    for (int stage = 0; stage + 1 < base_.num_stages(); ++stage) {
      for (const int step : {-1, 1}) {
        std::vector<int> moved = start;
        moved[stage] += step;
        moved[stage + 1] -= step;
        if (moved[stage] == 0 || moved[stage + 1] == 0 || !has_time()) continue;
        std::optional<Trial> trial = run(moved);
        if (!trial || !is_faster(trial->step_seconds, found->step_seconds)) continue;
        found = std::move(trial);
        is_better = true;
      }
    }
  }
}

}  // namespace gpipe
