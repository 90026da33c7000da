#include "cli/schedule_options.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/command_line.h"
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
  const OptionGroup size{command, "Size"};
  size.add("K", "--stages", options.num_workers, parse_count,
           "Workers, the depth of the pipeline; a schedule with V chunks has K x V stages");
  size.add("M", "--micro-batches", options.num_micro_batches, can_choose ? parse_count_or_auto : parse_count,
           fmt::format("Slices of the mini-batch{}", can_choose ? "; auto: choose" : ""));
  size.add("V", "--chunks", options.chunks, parse_count, "Stages a worker [the schedule's own: 1 or 2]");
  size.add("MODE", "--recompute", options.recompute, can_choose ? parse_recompute : parse_chosen_recompute,
           fmt::format("Redo forwards in the backward pass to save memory: always, except-last or never{} [never]",
                       can_choose ? "; auto: where a stage does not fit without" : ""));
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

// What B leaves for the other part.
double rest(double backward, double part, const char* option) {
  if (part <= backward) return backward - part;
  throw UsageError(fmt::format("{} {} is more than --backward {}", option, part, backward),
                   "a backward is the input gradient and the weight gradient together: B = I + W");
}

}  // namespace

void add_size_options(CLI::App& command, ScheduleOptions& options) { add_sizes(command, options, false); }
void add_open_size_options(CLI::App& command, ScheduleOptions& options) { add_sizes(command, options, true); }

void require_schedule(const ScheduleOptions& options) {
  refuse_if(options.name.empty(), "which schedule? No NAME is given",
            fmt::format("the schedules are {}", schedule_names()));
  refuse_if(!options.num_workers, "--stages is missing", "add --stages K, the number of workers");
  refuse_if(!options.num_micro_batches, "--micro-batches is missing",
            "add --micro-batches M, the slices of the mini-batch");
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

bool CostOptions::any() const {
  return forward_seconds || backward_seconds || input_grad_seconds || weight_grad_seconds || recompute_seconds ||
         update_seconds || output_bytes;
}

void add_cost_options(CLI::App& command, CostOptions& options) {
  const OptionGroup costs{command, "Costs of a worker's whole share of the model, in seconds a micro-batch"};
  costs.add("S", "--forward", options.forward_seconds, parse_seconds, "F [1]");
  costs.add("S", "--backward", options.backward_seconds, parse_seconds, "B [2; I + W if either is given]");
  costs.add("S", "--input-grad", options.input_grad_seconds, parse_seconds,
            "I [half of B; the rest of B if W is given]");
  costs.add("S", "--weight-grad", options.weight_grad_seconds, parse_seconds,
            "W [half of B; the rest of B if I is given]");
  costs.add("S", "--recompute-cost", options.recompute_seconds, parse_seconds, "R [as F]");
  costs.add("S", "--update-seconds", options.update_seconds, parse_seconds, "Optimizer step, once a step [0]");
}

void add_link_options(CLI::App& command, LinkCosts& link) {
  const OptionGroup messages{command, "Messages"};
  messages.add("S", "--link-latency", link.latency_seconds, parse_seconds, "Seconds a message travels [0]");
  messages.add("SIZE", "--link-bandwidth", link.bytes_per_second, parse_bytes_per_second,
               "Bytes a second between two workers, such as 10GB [unbounded]");
}

void add_workers_option(CLI::App& command, const char* group, std::string& path) {
  OptionGroup{command, group}.add("FILE", "--workers", path, parse_path,
                                  "Speed, memory and link to the next of each worker, as JSON [all alike]");
}

StageCosts worker_share(const CostOptions& options) {
  StageCosts costs;
  costs.forward_seconds = options.forward_seconds.value_or(costs.forward_seconds);
  costs.recompute_seconds = options.recompute_seconds.value_or(costs.forward_seconds);
  costs.update_seconds = options.update_seconds.value_or(0);
  costs.output_bytes = options.output_bytes.value_or(0);
  const auto& backward = options.backward_seconds;
  const auto& input_grad = options.input_grad_seconds;
  const auto& weight_grad = options.weight_grad_seconds;
  if (backward && input_grad && !weight_grad) {
    costs.input_grad_seconds = *input_grad;
    costs.weight_grad_seconds = rest(*backward, *input_grad, "--input-grad");
  } else if (backward && weight_grad && !input_grad) {
    costs.input_grad_seconds = rest(*backward, *weight_grad, "--weight-grad");
    costs.weight_grad_seconds = *weight_grad;
  } else {
    const double half = backward.value_or(2) / 2;
    costs.input_grad_seconds = input_grad.value_or(half);
    costs.weight_grad_seconds = weight_grad.value_or(half);
  }
  costs.backward_seconds = backward.value_or(costs.input_grad_seconds + costs.weight_grad_seconds);
  return costs;
}

std::string count_of(std::int64_t count, const std::string& thing) {
  const char* ending = count == 1 ? "" : thing.back() == 'h' ? "es" : "s";
  return fmt::format("{} {}{}", count, thing, ending);
}

std::string describe_size(int num_workers, int num_stages, int num_micro_batches) {
  return fmt::format("{}, {}, {}", count_of(num_workers, "worker"), count_of(num_stages, "stage"),
                     count_of(num_micro_batches, "micro-batch"));
}

std::string count_kinds(const std::vector<std::vector<Action>>& workers) {
  std::array<std::int64_t, kNumActionKinds> counts{};
  for (const std::vector<Action>& actions : workers) {
    for (const Action& action : actions) ++counts[static_cast<std::size_t>(action.kind)];
  }
  std::vector<std::string> parts;
  for (int kind = 0; kind < kNumActionKinds; ++kind) {
    if (counts[kind] > 0) parts.push_back(fmt::format("{} {}", counts[kind], letter(static_cast<ActionKind>(kind))));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace gpipe::cli
