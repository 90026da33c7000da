#include "cli/schedule_options.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/option.h"
#include "cli/quantity.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/registry.h"

namespace gpipe::cli {
namespace {

int parse_count_or_auto(std::string_view word) { return word == "auto" ? 0 : parse_count(word); }

Recompute parse_chosen_recompute(std::string_view word) {
  const Recompute mode = parse_recompute(word);
  if (mode == Recompute::kAuto) throw InvalidArgument("only 'gpipe plan' chooses; give always, except-last or never");
  return mode;
}

void add_sizes(CLI::App& command, ScheduleOptions& options, bool can_choose) {
  const char* group = "Size";
  const char* or_auto = can_choose ? "; auto: choose" : "";
  add_value(command, "--stages", options.num_workers, parse_count,
            "Workers, the depth of the pipeline; a schedule with V chunks has K x V stages")
      ->type_name("K")
      ->group(group);
  add_value(command, "--micro-batches", options.num_micro_batches, can_choose ? parse_count_or_auto : parse_count,
            fmt::format("Slices of the mini-batch{}", or_auto))
      ->type_name("M")
      ->group(group);
  add_value(command, "--chunks", options.chunks, parse_count, "Stages a worker [the schedule's own: 1 or 2]")
      ->type_name("V")
      ->group(group);
  add_value(command, "--recompute", options.recompute, can_choose ? parse_recompute : parse_chosen_recompute,
            fmt::format("Redo forwards in the backward pass to save memory: always, except-last or never{} [never]",
                        can_choose ? "; auto: where a stage does not fit without" : ""))
      ->type_name("MODE")
      ->group(group);
}

// What a command makes, prints and simulates in seconds, and in less than a gigabyte.
constexpr std::int64_t kMostActions = std::int64_t{1} << 23;

void check_number_of_actions(const ScheduleOptions& options) {
  const ScheduleInfo& info = find_schedule(options.name);
  const Schedule smallest = gpipe::make_schedule(info.name, 1, 1);
  const bool recomputes = options.recompute && *options.recompute != Recompute::kNever;
  // Of each stage and micro-batch. In floating point, so that no product overflows.
  const double actions = static_cast<double>(smallest.num_actions()) / smallest.num_stages + (recomputes ? 1 : 0);
  const double num_stages = static_cast<double>(*options.num_workers) * options.chunks.value_or(info.default_chunks);
  if (num_stages > kMaxStages) return;  // it has a refusal of its own
  const double num_actions = actions * num_stages * *options.num_micro_batches;
  if (num_actions <= static_cast<double>(kMostActions)) return;
  const double fewer = std::floor(static_cast<double>(kMostActions) / (actions * num_stages));
  throw UsageError(
      fmt::format("--stages {} and --micro-batches {} make {:.0f} actions, and a command takes at most {}",
                  *options.num_workers, *options.num_micro_batches, num_actions, kMostActions),
      fewer < 1 ? "ask for fewer stages"
                : fmt::format("ask for at most {:.0f} micro-batches; 'gpipe plan' takes any number of them", fewer));
}

}  // namespace

void add_size_options(CLI::App& command, ScheduleOptions& options) { add_sizes(command, options, false); }
void add_open_size_options(CLI::App& command, ScheduleOptions& options) { add_sizes(command, options, true); }

void require_schedule(const ScheduleOptions& options) {
  if (options.name.empty()) {
    throw UsageError("which schedule? No NAME is given", fmt::format("the schedules are {}", schedule_names()));
  }
  if (!options.num_workers) {
    throw UsageError("--stages is missing", "add --stages K, the number of workers");
  }
  if (!options.num_micro_batches) {
    throw UsageError("--micro-batches is missing", "add --micro-batches M, the slices of the mini-batch");
  }
}

Schedule make_schedule(const ScheduleOptions& options) {
  if (!options.name.empty()) find_schedule(options.name);  // a mistyped name is told before a missing size
  require_schedule(options);
  check_number_of_actions(options);
  Schedule schedule =
      gpipe::make_schedule(options.name, *options.num_workers, *options.num_micro_batches, options.chunks.value_or(0));
  if (!options.recompute || *options.recompute == Recompute::kNever) return schedule;
  return with_recompute(std::move(schedule), *options.recompute);
}

void require_same_size(const ScheduleOptions& options, const Schedule& schedule, const std::string& file) {
  const auto require = [&file](const char* option, const std::optional<int>& given, int found, const char* things) {
    if (!given || *given == found) return;
    throw UsageError(
        fmt::format("{} {} does not agree with '{}', which has {} {}", option, *given, file, found, things),
        fmt::format("leave {} out: the file says it", option));
  };
  require("--stages", options.num_workers, schedule.num_workers(), "workers");
  require("--micro-batches", options.num_micro_batches, schedule.num_micro_batches, "micro-batches");
  if (options.chunks && schedule.num_workers() > 0) {
    require("--chunks", options.chunks, schedule.num_stages / schedule.num_workers(), "stages a worker");
  }
}

std::string schedule_names() {
  std::vector<const char*> names;
  for (const ScheduleInfo& info : schedule_registry()) names.push_back(info.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace gpipe::cli
