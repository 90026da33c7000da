#include "cli/simulate_command.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/cost_options.h"
#include "cli/help.h"
#include "cli/input_file.h"
#include "cli/option.h"
#include "cli/output_file.h"
#include "cli/quantity.h"
#include "cli/schedule_options.h"
#include "cli/schedule_summary.h"
#include "cli/simulation_report.h"
#include "cli/terminal.h"
#include "gpipe/plan/plan.h"
#include "gpipe/report/chrome_trace.h"
#include "gpipe/report/svg.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::cli {
namespace {

// How many messages a flow holds before its sender waits.
struct Capacity {
  enum class Kind { kLive, kFree, kUnbounded, kNumber } kind = Kind::kUnbounded;
  int number = 0;
};

struct SimulateCommand {
  ScheduleOptions schedule;
  std::string file;
  CostOptions costs;
  std::string profile;
  std::vector<int> balance;
  LinkCosts link;
  Capacity capacity;
  bool json = false;
  std::string trace;
  std::string svg;
  bool force = false;
  Colour colour = Colour::kAuto;
  std::optional<int> width;
};

Capacity parse_capacity(std::string_view word) {
  if (!word.empty() && word.find_first_not_of("-0123456789") == std::string_view::npos) {
    return {Capacity::Kind::kNumber, parse_count(word)};
  }
  constexpr Capacity::Kind kKinds[] = {Capacity::Kind::kLive, Capacity::Kind::kFree, Capacity::Kind::kUnbounded};
  try {
    return {kKinds[parse_choice(word, {"live", "free", "unbounded"})], 0};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}, or a whole number", error.what()));
  }
}

std::vector<int> parse_balance(std::string_view words) { return parse_list(words, parse_count); }

void check_usage(const SimulateCommand& command) {
  if (!command.file.empty() && !command.schedule.name.empty()) {
    throw UsageError(fmt::format("both a NAME, '{}', and --file are given", command.schedule.name), "give one of them");
  }
  if (command.file.empty() && command.schedule.name.empty()) {
    throw UsageError("which schedule? Neither NAME nor --file is given",
                     fmt::format("the schedules are {}", schedule_names()));
  }
  if (!command.profile.empty() && command.costs.any()) {
    throw UsageError("--profile already says what the layers cost",
                     "leave out --forward, --backward and the other costs, or leave out --profile");
  }
  if (command.profile.empty() && !command.balance.empty()) {
    throw UsageError("--balance splits the layers of a profile", "add --profile FILE, or leave --balance out");
  }
  if (command.file == "-" && command.profile == "-") {
    throw UsageError("--file and --profile both read standard input", "name a file for one of them");
  }
  if (!command.trace.empty() && is_same_file(command.trace, command.svg)) {
    throw UsageError(fmt::format("--trace and --svg both name '{}'", command.svg), "name two files");
  }
  for (const std::string& output : {command.trace, command.svg}) {
    if (!output.empty()) check_output_file(output, command.force);
  }
}

// A schedule of our own making is right; one from a file is proven first.
Schedule load_schedule(const SimulateCommand& command) {
  if (command.file.empty()) return make_schedule(command.schedule);
  Schedule schedule = read_schedule(command.file);
  require_same_size(command.schedule, schedule, command.file);
  if (command.schedule.recompute) schedule = with_recompute(std::move(schedule), *command.schedule.recompute);
  ValidateOptions prove_only;
  prove_only.compute_capacities = false;
  validate(schedule, prove_only);
  return schedule;
}

// The layers of the profile on the stages of the schedule, as `gpipe plan` would put them.
std::vector<int> split_layers(const SimulateCommand& command, const Schedule& schedule, const Profile& profile) {
  if (!command.balance.empty()) {
    if (static_cast<int>(command.balance.size()) != schedule.num_stages) {
      throw UsageError(fmt::format("--balance names {}, but the schedule has {}",
                                   count_of(static_cast<std::int64_t>(command.balance.size()), "stage"),
                                   count_of(schedule.num_stages, "stage")),
                       "give one number of layers for each stage");
    }
    return command.balance;
  }
  PartitionOptions options;
  options.link = command.link;
  std::vector<int> layers_per_stage;
  for (const PartitionStage& stage : partition_for(profile, schedule, options).stages) {
    layers_per_stage.push_back(stage.num_layers);
  }
  return layers_per_stage;
}

Costs make_costs(const SimulateCommand& command, const Schedule& schedule) {
  if (command.profile.empty()) {
    Costs costs = uniform_costs(schedule, worker_share(command.costs));
    costs.link = command.link;
    return costs;
  }
  const Profile profile = read_profile(command.profile);
  return stage_costs(profile, split_layers(command, schedule, profile), command.link, PlanOptions().optimizer_slots);
}

std::vector<int> make_capacities(const Capacity& capacity, const Schedule& schedule, const Routes& routes) {
  if (capacity.kind == Capacity::Kind::kUnbounded) return {};
  if (capacity.kind == Capacity::Kind::kNumber) {
    return std::vector<int>(make_flow_table(schedule, routes).flows.size(), capacity.number);
  }
  ValidateOptions options;
  options.routes = routes;
  std::vector<int> capacities;
  for (const FlowCertificate& flow : validate(schedule, options).flows) {
    if (capacity.kind == Capacity::Kind::kFree && !flow.free_capacity) {
      throw UsageError("the schedule is too large to compute free capacities",
                       "use --capacity live, unbounded or a number");
    }
    capacities.push_back(capacity.kind == Capacity::Kind::kLive ? flow.live_capacity : *flow.free_capacity);
  }
  return capacities;
}

int run_simulate(const SimulateCommand& command) {
  check_usage(command);
  const Schedule schedule = load_schedule(command);
  const Costs costs = make_costs(command, schedule);
  if (std::isfinite(command.link.bytes_per_second) && command.profile.empty() && !command.costs.output_bytes) {
    print_error("--link-bandwidth changes nothing: the messages have no size",
                "add --output-bytes SIZE or --profile FILE");
  }
  SimulateOptions options;
  options.capacities = make_capacities(command.capacity, schedule, costs.routes);
  const Timeline timeline = simulate(schedule, costs, options);
  if (!std::isfinite(timeline.num_workers() * timeline.makespan_seconds)) {
    throw UsageError("the costs add up to more seconds than a number can hold", "give smaller costs");
  }
  if (!command.trace.empty()) write_output_file(command.trace, to_chrome_trace(timeline), command.force);
  if (!command.svg.empty()) write_output_file(command.svg, to_svg(timeline), command.force);
  GanttOptions gantt;
  gantt.width = command.width.value_or(output_width());
  gantt.colour = shows_colour(command.colour);
  print(command.json ? simulation_json(timeline) : simulation_report(timeline, gantt));
  return kDone;
}

void add_profile_options(CLI::App& app, SimulateCommand& command) {
  const char* group = "Costs of a profiled model";
  add_value(app, "--profile", command.profile, parse_path,
            "Costs of each layer, as JSON; split into stages as 'gpipe plan' does")
      ->type_name("FILE")
      ->group(group);
  add_value(app, "--balance", command.balance, parse_balance, "Layers of each stage, such as 3,3,2, instead")
      ->type_name("N,N,...")
      ->group(group);
}

void add_output_options(CLI::App& app, SimulateCommand& command) {
  const char* group = "Output";
  app.add_flag("--json", command.json, "Print one JSON object")->group(group);
  add_value(app, "--trace", command.trace, parse_path, "Write a Chrome trace, for ui.perfetto.dev")
      ->type_name("FILE")
      ->group(group);
  add_value(app, "--svg", command.svg, parse_path, "Write a picture")->type_name("FILE")->group(group);
  app.add_flag("--force", command.force, "Replace plain files that exist")->group(group);
  add_value(app, "--width", command.width, parse_width,
            "Columns of the gantt [the terminal's, or 100 where there is none]")
      ->type_name("N")
      ->group(group);
  add_value(app, "--color,--colour", command.colour, parse_colour, "Colours: auto, always, never [auto]")
      ->type_name("WHEN")
      ->group(group);
}

}  // namespace

void add_simulate_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<SimulateCommand>();
  CLI::App& sub = *app.add_subcommand("simulate");
  sub.add_option("NAME", command->schedule.name, fmt::format("One of {}", schedule_names()));
  add_value(sub, "--file", command->file, parse_path,
            "A schedule from a file instead, text or CSV; '-' reads standard input")
      ->type_name("FILE")
      ->group("Size");
  add_size_options(sub, command->schedule);
  add_cost_options(sub, command->costs);
  add_profile_options(sub, *command);
  add_value(sub, "--output-bytes", command->costs.output_bytes, parse_bytes,
            "Size of one activation message between stages [0; a profile says it]")
      ->type_name("SIZE")
      ->group("Messages");
  add_link_options(sub, command->link);
  add_value(
      sub, "--capacity", command->capacity, parse_capacity,
      "Messages a flow holds before its sender waits: live (the least that cannot deadlock), free (no sender waits), "
      "unbounded or a number [unbounded]")
      ->type_name("N")
      ->group("Messages");
  add_output_options(sub, *command);
  set_help(sub, {"gpipe simulate (NAME --stages K --micro-batches M | --file F) [options]",
                 "Run a schedule on costs instead of tensors; say where the time went.",
                 "A backward is an input gradient and a weight gradient: B = I + W. Of these three, what "
                 "is not given follows from what is; all three given are taken as they are.",
                 "  gpipe simulate 1f1b --stages 4 --micro-batches 8\n"
                 "  gpipe simulate zb-v --stages 4 --micro-batches 8 --link-latency 0.1 --json\n"
                 "  gpipe simulate 1f1b --stages 4 --micro-batches 32 --profile model.json\n"
                 "  gpipe simulate --file schedule.txt --trace trace.json --svg schedule.svg"});
  sub.callback([&chosen, command] { chosen = [command] { return run_simulate(*command); }; });
}

}  // namespace gpipe::cli
