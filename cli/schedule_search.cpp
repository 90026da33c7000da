#include "cli/schedule_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/simulate/schedule_search.h"
#include "gpipe/text/layout.h"

namespace gpipe::cli {
namespace {

using detail::Align;

constexpr const char* kHeading = "Search";

// A line on the terminal that is written over.
class ProgressLine {
 public:
  ProgressLine() : is_shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() {
    if (is_shown_) fmt::print(stderr, "\r\033[K");
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(double share, double step_seconds) const {
    if (!is_shown_) return;
    fmt::print(stderr, "\rsearch: {:3.0f} %, a step of {} so far\033[K", 100 * share, format_seconds(step_seconds));
    std::fflush(stderr);
  }

 private:
  const bool is_shown_;
};

std::string bound_text(const StepBound& bound) {
  const bool is_worker = bound.busiest_worker_seconds >= bound.critical_path_seconds;
  return fmt::format("{} ({})", format_seconds(bound.seconds()), is_worker ? "busiest worker" : "critical path");
}

std::string percent_above(double seconds, double bound) {
  return bound > 0 ? format_percent(std::max(0.0, seconds / bound - 1)) : "";
}

std::string slower_by(double seconds, double best) {
  const std::string percent = percent_above(seconds, best);
  return percent.empty() ? "" : "+" + percent;
}

std::string bound_line(const char* title, const StepBound& bound, double step_seconds) {
  const std::string percent = percent_above(step_seconds, bound.seconds());
  return fmt::format("lower bound, {:<13} {}{}\n", title, bound_text(bound),
                     percent.empty() ? "" : fmt::format(": the step is {} above it", percent));
}

std::string report(const ScheduleSearch& search) {
  const Plan& best = search.best;
  const double step = best.predicted_step_seconds;
  std::vector<std::vector<std::string>> rows;
  const auto fullest = std::max_element(best.predicted_peak_bytes.begin(), best.predicted_peak_bytes.end());
  rows.push_back({best.schedule, fmt::format("{}", best.chunks), format_seconds(step), "", format_bytes(*fullest)});
  for (const PlanCandidate& candidate : search.named) {
    rows.push_back({candidate.schedule, fmt::format("{}", candidate.chunks), format_seconds(candidate.step_seconds),
                    slower_by(candidate.step_seconds, step), format_bytes(candidate.fullest_bytes)});
  }
  std::string text = detail::to_table(
      {{"schedule", Align::kLeft}, {"chunks"}, {"step"}, {"", Align::kRight}, {"fullest worker"}}, rows);
  text += bound_line("these stages", search.of_cut, step);
  text += bound_line("any stages", search.of_any_cut, step);
  text += fmt::format("layers per stage           {}\n", fmt::join(best.layers_per_stage, ","));
  return text;
}

}  // namespace

bool SearchOptions::any(const CLI::App& command) const {
  const std::vector<const CLI::Option*> of_search = command.get_options(
      [](const CLI::Option* option) { return option->get_group() == kHeading || option->get_group() == "Messages"; });
  return std::any_of(of_search.begin(), of_search.end(), [](const CLI::Option* option) { return option->count() > 0; });
}

void add_search_options(CLI::App& command, SearchOptions& options) {
  const OptionGroup group{command, kHeading};
  PlanOptions& plan = options.options;
  group.add("FILE", "--profile", options.profile, parse_path, "Costs of each layer, as JSON; '-' reads standard input");
  group.add("SIZE", "--memory-limit", plan.memory_limit_bytes, parse_bytes,
            "Bytes a worker has, such as 2GiB [unlimited]");
  add_workers_option(command, kHeading, options.workers);
  group.add("N", "--optimizer-slots", plan.optimizer_slots, parse_index,
            "Tensors of optimizer state a weight: 0 SGD, 1 momentum, 2 Adam [2]");
  group.add("S", "--seconds", plan.search_seconds, parse_speed,
            "Work, about in seconds of one core; the result does not depend on the machine [20]");
  group.add("N", "--seed", plan.search_seed, parse_index, "Another one may find another schedule [0]");
  group.add("FILE", "--plan", options.plan, parse_path, "Write the schedule with its layers, for 'gpipe train --plan'");
}

void check_usage(const ScheduleOptions& schedule, const SearchOptions& options, bool force) {
  refuse_if(options.profile.empty(), "--profile is missing", "add --profile FILE, the costs of each layer as JSON");
  require_schedule(schedule);
  refuse_if(options.profile == "-" && options.workers == "-", "--profile and --workers both read standard input",
            "name a file for one of them");
  refuse_if(schedule.chunks.has_value(), "--chunks is given, and a search chooses it", "leave --chunks out");
  refuse_if(*schedule.num_micro_batches == 0, "--micro-batches auto is given, and a search is for one number of them",
            "give the number; 'gpipe plan' chooses it");
  if (!options.plan.empty()) check_output_file(options.plan, force);
}

Plan search_schedule(const ScheduleOptions& schedule, const SearchOptions& options, bool force) {
  const Profile profile = read_profile(options.profile);
  PlanOptions wanted = options.options;
  wanted.num_stages = *schedule.num_workers;
  wanted.num_micro_batches = *schedule.num_micro_batches;
  if (!options.workers.empty()) wanted.workers = read_workers(options.workers, wanted.num_stages, wanted.link);
  wanted.recompute = schedule.recompute.value_or(wanted.has_memory_limit() ? Recompute::kAuto : Recompute::kNever);
  ScheduleSearch found;
  {
    const ProgressLine line;
    found = search_schedules(profile, wanted, [&](double share, double step) { line.show(share, step); });
  }
  if (!options.plan.empty()) write_output_file(options.plan, to_json(found.best), force);
  fmt::print(stderr, "{}", report(found));
  return std::move(found.best);
}

}  // namespace gpipe::cli
