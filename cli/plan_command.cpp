#include "cli/plan_command.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/cost_options.h"
#include "cli/help.h"
#include "cli/input_file.h"
#include "cli/option.h"
#include "cli/output_file.h"
#include "cli/plan_report.h"
#include "cli/quantity.h"
#include "cli/schedule_options.h"
#include "cli/schedule_summary.h"
#include "cli/terminal.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/forecast.h"
#include "gpipe/simulate/planner.h"

namespace gpipe::cli {
namespace {

struct PlanCommand {
  std::string profile;
  ScheduleOptions schedule;
  PlanOptions options;  // what is not in `schedule`
  std::string out;
  bool no_rematerialize = false;
  bool explain = false;
  bool json = false;
  bool force = false;
};

Objective parse_objective(std::string_view word) {
  constexpr Objective kObjectives[] = {Objective::kMakespan, Objective::kSlowestStage};
  return kObjectives[parse_choice(word, {"makespan", "slowest-stage"})];
}

std::int64_t num_candidates(const PlanSearch& search) { return static_cast<std::int64_t>(search.candidates.size()); }

std::vector<double> parse_speeds(std::string_view words) { return parse_list(words, parse_speed); }

constexpr const char* kAuto = "auto";

void check_usage(const PlanCommand& command) {
  if (command.profile.empty()) {
    throw UsageError("--profile is missing", "add --profile FILE, the costs of each layer as JSON");
  }
  if (command.schedule.name != kAuto) find_schedule(command.schedule.name);
  require_schedule(command.schedule);
  if (*command.schedule.num_micro_batches == 0 && command.options.mini_batch_samples == 0) {
    throw UsageError("--micro-batches auto needs the size of the mini-batch", "add --mini-batch N, its samples");
  }
  if (command.no_rematerialize && command.schedule.recompute != Recompute::kAuto) {
    throw UsageError("--no-rematerialize is about --recompute auto", "add that, or leave --no-rematerialize out");
  }
  if (command.force && command.out.empty()) {
    throw UsageError("--force is about --out, and there is none", "add --out FILE, or leave --force out");
  }
  if (!command.out.empty()) check_output_file(command.out, command.force);
}

int run_plan(PlanCommand command) {
  check_usage(command);
  const Profile profile = read_profile(command.profile);
  PlanOptions& options = command.options;
  options.num_stages = *command.schedule.num_workers;
  options.num_micro_batches = *command.schedule.num_micro_batches;
  options.schedule = command.schedule.name;
  options.chunks = command.schedule.chunks.value_or(0);
  options.recompute = command.schedule.recompute.value_or(Recompute::kNever);
  options.rematerialize = !command.no_rematerialize;
  const PlanSearch search = search_plans(profile, options);
  const Forecast step = forecast(long_schedule_of(search.best), search.best.costs);
  if (!command.out.empty()) write_output_file(command.out, to_json(search.best), command.force);
  if (command.json) {
    print(plan_json(profile, search, step));
    return kDone;
  }
  print(plan_report(profile, search.best, step, output_width()));
  if (command.explain)
    print(fmt::format("\n{}, best first\n{}", count_of(num_candidates(search), "candidate"), explain(search)));
  return kDone;
}

void add_planning_options(CLI::App& app, PlanCommand& command) {
  const char* group = "Planning";
  PlanOptions& options = command.options;
  app.add_flag("--no-rematerialize", command.no_rematerialize,
               "With --recompute auto: recompute stages as a whole, never some of their layers")
      ->group(group);
  add_value(app, "--mini-batch", options.mini_batch_samples, parse_count,
            "Samples of the mini-batch: costs are scaled to its micro-batches [as profiled]")
      ->type_name("N")
      ->group(group);
  add_value(app, "--memory-limit", options.memory_limit_bytes, parse_bytes,
            "Bytes a worker has, such as 2GiB [unlimited]")
      ->type_name("SIZE")
      ->group(group);
  add_value(app, "--objective", options.objective, parse_objective,
            "makespan: the simulated step; slowest-stage: the longest time of a stage, for the cut alone [makespan]")
      ->type_name("WHAT")
      ->group(group);
  add_value(app, "--worker-speed", options.worker_speed, parse_speeds,
            "Speed of each worker, 1 as profiled, such as 1,1,0.5 [1 each]")
      ->type_name("X,X,...")
      ->group(group);
  add_value(app, "--optimizer-slots", options.optimizer_slots, parse_index,
            "Tensors of optimizer state a weight: 0 SGD, 1 momentum, 2 Adam [2]")
      ->type_name("N")
      ->group(group);
}

void add_output_options(CLI::App& app, PlanCommand& command) {
  const char* group = "Output";
  app.add_flag("--explain", command.explain, "Print what was tried, best first")->group(group);
  add_value(app, "--out", command.out, parse_path, "Write the plan, as JSON")->type_name("FILE")->group(group);
  app.add_flag("--force", command.force, "Replace a plain file that exists")->group(group);
  app.add_flag("--json", command.json, "Print one JSON object")->group(group);
}

}  // namespace

void add_plan_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<PlanCommand>();
  command->schedule.name = command->options.schedule;
  CLI::App& sub = *app.add_subcommand("plan");
  add_value(sub, "--profile", command->profile, parse_path, "Costs of each layer, as JSON; '-' reads standard input")
      ->type_name("FILE")
      ->group("Model");
  sub.add_option("--schedule", command->schedule.name,
                 fmt::format("The schedule to plan for; auto: choose [{}]", command->schedule.name))
      ->type_name("NAME")
      ->group("Size");
  add_open_size_options(sub, command->schedule);
  add_planning_options(sub, *command);
  add_link_options(sub, command->options.link);
  add_output_options(sub, *command);
  set_help(sub,
           {"gpipe plan --profile FILE --stages K --micro-batches M [options]",
            "Split a profiled model into stages; predict their time and bytes.",
            "What is auto is chosen by the simulated step. Exit code 1 if no split fits the memory limit: the message "
            "says how much is missing.",
            "  gpipe plan --profile model.json --stages 4 --micro-batches 32\n"
            "  gpipe plan --profile p.json --stages 4 --micro-batches 32 --recompute always\n"
            "  gpipe plan --profile p.json --stages 4 --micro-batches 32 --memory-limit 2GiB\n"
            "  gpipe plan --profile p.json --stages 4 --micro-batches 32 --schedule auto"});
  sub.callback([&chosen, command] { chosen = [command] { return run_plan(*command); }; });
}

}  // namespace gpipe::cli
