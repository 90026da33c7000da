#include "gpipe/simulate/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/stage_rematerialization.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/forecast.h"
#include "gpipe/simulate/plan_trials.h"
#include "gpipe/simulate/schedule_search.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::Align;
using detail::byte_text;
using detail::Column;
using detail::fastest_rematerialized;
using detail::Forecast;
using detail::forecast;
using detail::is_faster;
using detail::keep_faster;
using detail::long_schedule_of;
using detail::PlanTrials;
using detail::require;
using detail::saturated;
using detail::set_rematerialization;
using detail::to_table;
using detail::Trial;
using detail::WideBytes;

constexpr const char* kAutoSchedule = "auto";
constexpr const char* kPerStage = "per stage";
constexpr const char* kPerLayer = "per layer";

bool is_fixed(const PlanOptions& options) {
  return options.num_micro_batches != 0 && options.schedule != kAutoSchedule &&
         (options.recompute != Recompute::kAuto || !options.recompute_by_stage.empty());
}

void check(const PlanOptions& options) {
  require(options.mini_batch_samples >= 0, "mini_batch_samples is {}; expected 0 (unknown) or more",
          options.mini_batch_samples);
  require(options.num_micro_batches != 0 || options.mini_batch_samples != 0,
          "the number of micro-batches can be chosen only for a mini-batch of known size; give mini_batch_samples, or "
          "num_micro_batches");
  if (options.schedule != kAutoSchedule && options.schedule != kSearchedSchedule) {
    find_schedule(options.schedule, plannable_schedule_names());
  }
  require(options.recompute_by_stage.empty() || options.schedule != kAutoSchedule,
          "recompute_by_stage is for the stages of one schedule; name it, or leave the modes to the plan");
}

Profile sized(const Profile& profile, const PlanOptions& options) {
  if (options.mini_batch_samples == 0) return profile;
  return for_micro_batches(profile, options.mini_batch_samples, options.num_micro_batches);
}

std::vector<int> micro_batch_choices(const PlanOptions& options) {
  if (options.num_micro_batches != 0) return {options.num_micro_batches};
  constexpr std::int64_t kMost = 4096;
  std::vector<int> choices;
  for (std::int64_t count = 1; count <= std::min<std::int64_t>(kMost, options.mini_batch_samples); count *= 2) {
    choices.push_back(static_cast<int>(count));
  }
  return choices;
}

// The options with each schedule and number of chunks that there is.
std::vector<PlanOptions> schedule_choices(const PlanOptions& options, std::size_t num_layers) {
  std::vector<PlanOptions> choices;
  if (options.schedule != kAutoSchedule) {
    choices.push_back(options);
    if (options.chunks == 0) choices.back().chunks = find_schedule(options.schedule).default_chunks;
    return choices;
  }
  const auto add = [&](const char* schedule, int chunks) {
    if (options.chunks != 0 && options.chunks != chunks) return;
    choices.push_back(options);
    choices.back().schedule = schedule;
    choices.back().chunks = chunks;
  };
  add("1f1b", 1);
  add("gpipe", 1);
  constexpr int kMostChunks = 4;
  const std::size_t most = options.num_stages < 2 ? 0 : num_layers / static_cast<std::size_t>(options.num_stages);
  for (std::size_t chunks = 2; chunks <= most; ++chunks) {
    if (chunks <= kMostChunks || options.chunks != 0) add("interleaved", static_cast<int>(chunks));
  }
  require(!choices.empty(),
          "no schedule puts {} stages on each of {} workers with {} layers; leave the chunks to the plan",
          options.chunks, options.num_stages, num_layers);
  return choices;
}

std::string modes_text(const std::vector<Recompute>& modes) {
  const bool is_one = std::all_of(modes.begin(), modes.end(), [&](Recompute mode) { return mode == modes.front(); });
  return is_one ? name(modes.front()) : kPerStage;
}

// One row of the table, and what it takes to make the plan of it.
struct Found {
  std::string recompute;
  std::optional<Trial> trial;      // if it fits
  std::int64_t missing_bytes = 0;  // if not
  std::size_t choice = 0;          // of the options it was found for
};

Found fitting(Trial trial) {
  std::string recompute = trial.rematerialization.empty() ? modes_text(trial.modes) : kPerLayer;
  return {std::move(recompute), std::move(trial)};
}

// Those with the fastest step, then those that lack least.
bool comes_before(const Found& a, const Found& b) {
  if (a.trial.has_value() != b.trial.has_value()) return a.trial.has_value();
  return a.trial ? a.trial->step_seconds < b.trial->step_seconds : a.missing_bytes < b.missing_bytes;
}

PlanCandidate describe(const PlanOptions& options, const Found& found) {
  PlanCandidate candidate;
  candidate.schedule = options.schedule;
  candidate.chunks = options.chunks;
  candidate.num_micro_batches = options.num_micro_batches;
  candidate.recompute = found.recompute;
  candidate.missing_bytes = found.missing_bytes;
  if (!found.trial) return candidate;
  const std::vector<std::int64_t>& peak_bytes = found.trial->peak_bytes;
  const auto fullest = std::max_element(peak_bytes.begin(), peak_bytes.end());
  candidate.step_seconds = found.trial->step_seconds;
  candidate.fullest_bytes = *fullest;
  candidate.fullest_worker = static_cast<int>(fullest - peak_bytes.begin());
  candidate.layers_per_stage = found.trial->layers_per_stage;
  return candidate;
}

template <typename OnLimit>
void for_each_memory_limit(PlanOptions& options, const OnLimit& on_limit) {
  on_limit(options.memory_limit_bytes);
  for (WorkerCosts& worker : options.workers) on_limit(worker.memory_limit_bytes);
}

void remove_memory_limits(PlanOptions& options) {
  for_each_memory_limit(options, [](std::optional<std::int64_t>& limit_bytes) { limit_bytes.reset(); });
}

// The modes that are cut for before they are mixed. Without a limit there is nothing to save.
std::vector<Recompute> mode_choices(const PlanOptions& options) {
  if (options.recompute != Recompute::kAuto) return {options.recompute};
  if (!options.has_memory_limit()) return {Recompute::kNever};
  return {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};
}

// The candidates of one schedule and one number of micro-batches.
class PlanCandidates {
 public:
  PlanCandidates(const Profile& profile, const PlanOptions& options)
      : profile_(profile), options_(options), trials_(profile, options) {}

  std::vector<Found> find() {
    for (const Recompute mode : mode_choices(options_)) {
      const std::vector<Recompute> modes = options_.recompute_by_stage.empty()
                                               ? std::vector<Recompute>(trials_.num_stages(), mode)
                                               : options_.recompute_by_stage;
      cut_for(modes);
    }
    if (options_.recompute == Recompute::kAuto && options_.has_memory_limit()) {
      const std::vector<int> mixed = trials_.mixed_layers_per_stage();
      if (!mixed.empty()) keep(trials_.run(mixed));
    }
    for (int round = 0; round < kMaxRounds && best_ && options_.recompute == Recompute::kAuto; ++round) {
      const std::vector<Recompute> modes = best_->modes;
      cut_for(modes);
      if (best_->modes == modes) break;
    }
    best_ = trials_.improve(std::move(best_), std::move(seeds_));
    if (!best_) return std::move(found_);
    Found best = fitting(*std::move(best_));  // in front of its equals: it recomputes least
    const auto is_same = [&](const Found& found) { return found.recompute == best.recompute; };
    found_.erase(std::remove_if(found_.begin(), found_.end(), is_same), found_.end());
    found_.insert(found_.begin(), std::move(best));
    return std::move(found_);
  }

 private:
  static constexpr int kMaxRounds = 4;

  void keep(const std::optional<Trial>& trial) {
    if (!trial) return;
    seeds_.push_back(*trial);
    keep_faster(best_, trial);
  }

  // Cuts exactly for these modes; from there, takes the least that fits.
  void cut_for(const std::vector<Recompute>& modes) {
    PlanOptions options = options_;
    options.recompute_by_stage = modes;
    try {
      const Plan cut = partitioned_plan(profile_, options, /*find_smallest=*/false);
      keep(trials_.run(cut.layers_per_stage));
      keep_and_add(trials_.run(cut.layers_per_stage, cut.costs, modes));
    } catch (const InfeasibleError& error) {
      Found refused = {modes_text(modes), std::nullopt};
      if (refused.recompute == kPerStage && options_.recompute_by_stage.empty()) return;  // one of many
      refused.missing_bytes =
          saturated(WideBytes{error.missing_bytes()} * options_.chunks);  // the error is about a stage
      add(std::move(refused));
      if (options_.chunks == 1) return;
      // The stages of a worker need not have equal shares of its memory, as the cut has it.
      remove_memory_limits(options);
      keep_and_add(trials_.run(partitioned_plan(profile_, options).layers_per_stage));
    }
  }

  void keep_and_add(std::optional<Trial> trial) {
    keep(trial);
    if (trial) add(fitting(*std::move(trial)));
  }

  // One row for each kind of recompute: the fastest.
  void add(Found found) {
    for (Found& other : found_) {
      if (other.recompute != found.recompute) continue;
      if (found.trial && comes_before(found, other)) other = std::move(found);
      return;
    }
    found_.push_back(std::move(found));
  }

  const Profile& profile_;
  const PlanOptions& options_;
  PlanTrials trials_;
  std::vector<Found> found_;
  std::optional<Trial> best_;
  std::vector<Trial> seeds_;
};

void predict(Plan& plan) {
  const Forecast step = forecast(long_schedule_of(plan), plan.costs);
  plan.predicted_step_seconds = step.step_seconds;
  plan.predicted_peak_bytes = step.peak_bytes;
}

Plan make_plan(const Profile& profile, PlanOptions options, const Trial& trial) {
  const bool is_one = modes_text(trial.modes) == name(trial.modes.front());
  options.recompute = is_one ? trial.modes.front() : Recompute::kAuto;
  options.recompute_by_stage = is_one ? std::vector<Recompute>() : trial.modes;
  const Profile with_costs = sized(profile, options);
  Plan result = plan_with_layers(with_costs, options, trial.layers_per_stage);
  set_rematerialization(result, with_costs, trial.rematerialization);
  predict(result);
  return result;
}

// With the schedules that the search began with as further candidates.
PlanSearch searched(const Profile& profile, const PlanOptions& options) {
  ScheduleSearch search = search_schedules(profile, options);
  PlanSearch result;
  result.best = std::move(search.best);
  const Plan& best = result.best;
  PlanCandidate found;
  found.schedule = best.schedule;
  found.chunks = best.chunks;
  found.num_micro_batches = best.num_micro_batches;
  found.recompute =
      best.rematerialization.empty() ? best.recompute_by_stage.empty() ? name(best.recompute) : kPerStage : kPerLayer;
  found.step_seconds = best.predicted_step_seconds;
  const auto fullest = std::max_element(best.predicted_peak_bytes.begin(), best.predicted_peak_bytes.end());
  found.fullest_bytes = *fullest;
  found.fullest_worker = static_cast<int>(fullest - best.predicted_peak_bytes.begin());
  found.layers_per_stage = best.layers_per_stage;
  result.candidates = std::move(search.named);
  result.candidates.insert(result.candidates.begin(), std::move(found));
  return result;
}

// The choices worth a closer look.
std::vector<std::size_t> nearest_choices(const std::vector<Found>& all) {
  std::vector<const Found*> ordered;
  for (const Found& found : all) ordered.push_back(&found);
  std::stable_sort(ordered.begin(), ordered.end(), [](const Found* a, const Found* b) { return comes_before(*a, *b); });
  constexpr std::size_t kMost = 4;
  std::vector<std::size_t> nearest;
  for (const Found* found : ordered) {
    const bool is_new = std::find(nearest.begin(), nearest.end(), found->choice) == nearest.end();
    if (is_new && nearest.size() < kMost) nearest.push_back(found->choice);
  }
  return nearest;
}

// Where stages that drop some of their layers are looked for: the partitions that were found, and those that are best
// if memory is no matter or if it is just enough.
std::vector<std::vector<int>> partitions_to_rematerialize(const Profile& profile, PlanOptions options,
                                                          const std::vector<Found>& all, std::size_t choice) {
  std::vector<std::vector<int>> partitions;
  const auto add = [&](const std::vector<int>& layers_per_stage) {
    const bool is_new = std::find(partitions.begin(), partitions.end(), layers_per_stage) == partitions.end();
    if (is_new) partitions.push_back(layers_per_stage);
  };
  std::int64_t missing_bytes = 0;
  for (const Found& found : all) {
    if (found.choice != choice) continue;
    if (found.trial) add(found.trial->layers_per_stage);
    if (!found.trial && found.recompute == name(Recompute::kAlways)) missing_bytes = found.missing_bytes;
  }
  PlanOptions unlimited = options;
  unlimited.recompute = Recompute::kNever;
  remove_memory_limits(unlimited);
  add(partitioned_plan(profile, unlimited).layers_per_stage);
  if (missing_bytes > 0) {
    options.recompute = Recompute::kAlways;
    for_each_memory_limit(options, [&](std::optional<std::int64_t>& limit_bytes) {
      if (limit_bytes) limit_bytes = saturated(WideBytes{*limit_bytes} + missing_bytes);
    });
    try {
      add(partitioned_plan(profile, options, /*find_smallest=*/false).layers_per_stage);
    } catch (const InfeasibleError&) {  // NOLINT(bugprone-empty-catch) then it is not one of them
    }
  }
  return partitions;
}

// Adds a row for each choice that gets faster, or fits at all, if stages drop some of their layers.
void add_rematerialized(const Profile& profile, const std::vector<PlanOptions>& choices, std::vector<Found>& all) {
  for (const std::size_t choice : nearest_choices(all)) {
    const PlanOptions& options = choices[choice];
    const Profile with_costs = sized(profile, options);
    std::optional<Trial> best =
        fastest_rematerialized(with_costs, options, partitions_to_rematerialize(with_costs, options, all, choice));
    if (!best) continue;
    const bool is_better = std::none_of(all.begin(), all.end(), [&](const Found& found) {
      return found.choice == choice && found.trial && !is_faster(best->step_seconds, found.trial->step_seconds);
    });
    if (!is_better) continue;
    all.push_back(fitting(*std::move(best)));
    all.back().choice = choice;
  }
}

// The error of the candidate that lacks least. REQUIRES: all of them do not fit, and there is one.
[[noreturn]] void fail_infeasible(const Profile& profile, const std::vector<PlanOptions>& choices,
                                  const std::vector<Found>& all) {
  const auto nearest = std::min_element(all.begin(), all.end(), comes_before);
  PlanOptions options = choices[nearest->choice];
  const bool leaves_recompute = options.recompute == Recompute::kAuto && options.recompute_by_stage.empty();
  if (leaves_recompute) options.recompute = parse_recompute(nearest->recompute);
  try {
    partitioned_plan(sized(profile, options), options);
  } catch (const InfeasibleError& error) {
    if (all.size() == 1) throw;
    throw InfeasibleError(
        fmt::format("none of {} candidates fits; the nearest is {}{} with {} micro-batch{}, recompute {}: {}",
                    all.size(), options.schedule,
                    options.chunks == 1 ? "" : fmt::format(" of {} chunks", options.chunks), options.num_micro_batches,
                    options.num_micro_batches == 1 ? "" : "es", nearest->recompute, error.what()),
        error.missing_bytes(), error.smallest_num_stages(), error.stage());
  }
  throw Error("a plan that did not fit now does; please report this");
}

// The exact cut for another objective than the step.
PlanSearch cut_only(const Profile& profile, const PlanOptions& options) {
  PlanSearch result;
  result.best = partitioned_plan(sized(profile, options), options);
  predict(result.best);
  const std::vector<Recompute> modes =
      options.recompute_by_stage.empty() ? std::vector<Recompute>{options.recompute} : options.recompute_by_stage;
  PlanOptions chosen = options;
  chosen.chunks = result.best.chunks;
  result.candidates.push_back(
      describe(chosen, fitting({result.best.layers_per_stage, modes, result.best.predicted_step_seconds,
                                result.best.predicted_peak_bytes})));
  return result;
}

}  // namespace

std::vector<std::string> plannable_schedule_names() {
  std::vector<std::string> names = {kAutoSchedule, kSearchedSchedule};
  for (const ScheduleInfo& info : schedule_registry()) names.emplace_back(info.name);
  return names;
}

PlanSearch search_plans(const Profile& profile, const PlanOptions& options) {
  check(options);
  if (options.schedule == kSearchedSchedule) return searched(profile, options);
  if (is_fixed(options) && options.objective != Objective::kMakespan) return cut_only(profile, options);
  std::vector<PlanOptions> choices;
  std::vector<Found> all;
  for (const int num_micro_batches : micro_batch_choices(options)) {
    PlanOptions with_size = options;
    with_size.num_micro_batches = num_micro_batches;
    const Profile with_costs = sized(profile, with_size);
    for (const PlanOptions& choice : schedule_choices(with_size, profile.layers.size())) {
      for (Found& found : PlanCandidates(with_costs, choice).find()) {
        found.choice = choices.size();
        all.push_back(std::move(found));
      }
      choices.push_back(choice);
    }
  }
  const bool leaves_recompute = options.recompute == Recompute::kAuto && options.recompute_by_stage.empty();
  if (leaves_recompute && options.has_memory_limit() && options.rematerialize) {
    add_rematerialized(profile, choices, all);
  }
  auto best = all.end();
  for (auto found = all.begin(); found != all.end(); ++found) {
    if (!found->trial) continue;
    if (best == all.end() || is_faster(found->trial->step_seconds, best->trial->step_seconds)) best = found;
  }
  if (best == all.end()) fail_infeasible(profile, choices, all);
  std::rotate(all.begin(), best, best + 1);
  std::stable_sort(all.begin() + 1, all.end(), comes_before);
  PlanSearch result;
  result.best = make_plan(profile, choices[all.front().choice], *all.front().trial);
  for (const Found& found : all) result.candidates.push_back(describe(choices[found.choice], found));
  return result;
}

Plan plan(const Profile& profile, const PlanOptions& options) { return search_plans(profile, options).best; }

std::string explain(const PlanSearch& search) {
  std::vector<Column> columns;
  for (const char* title : {"step", "M", "schedule", "chunks", "recompute", "fullest worker"}) {
    columns.push_back({title, Align::kLeft});
  }
  std::vector<std::vector<std::string>> rows;
  for (const PlanCandidate& candidate : search.candidates) {
    const bool fits = candidate.missing_bytes == 0;
    std::vector<std::string> row = {
        fits ? fmt::format("{:.6g} s", candidate.step_seconds) : "-",
        fmt::format("{}", candidate.num_micro_batches),
        candidate.schedule,
        fmt::format("{}", candidate.chunks),
        candidate.recompute,
        fits ? fmt::format("{}, worker {}", byte_text(candidate.fullest_bytes), candidate.fullest_worker)
             : fmt::format("does not fit: lacks {}", byte_text(candidate.missing_bytes))};
    // Partitions that come to the same have one row.
    if (rows.empty() || rows.back() != row) rows.push_back(std::move(row));
  }
  return to_table(columns, rows);
}

}  // namespace gpipe
