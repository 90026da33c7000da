#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/schedule_options.h"
#include "cli/terminal.h"
#include "gpipe/plan/plan.h"
#include "gpipe/report/chrome_trace.h"
#include "gpipe/report/gantt.h"
#include "gpipe/report/svg.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

using detail::Align;
using detail::indented_json;

using nlohmann::ordered_json;

// Without bytes in the costs every peak is zero: unknown, not nothing.
bool knows_bytes(const Timeline& timeline) {
  return std::any_of(timeline.workers.begin(), timeline.workers.end(),
                     [](const WorkerTimeline& worker) { return worker.peak_bytes > 0; });
}

std::string worker_table(const Timeline& timeline, int max_workers) {
  const TimeUnit unit = time_unit(timeline.makespan_seconds);
  const bool has_bytes = knows_bytes(timeline);
  std::vector<std::vector<std::string>> rows;
  for (int worker = 0; worker < std::min(timeline.num_workers(), max_workers); ++worker) {
    const WorkerTimeline& one = timeline.workers[worker];
    rows.push_back({fmt::format("{}", worker), format_seconds(one.busy_seconds, unit),
                    format_seconds(one.idle_seconds, unit), fmt::format("{:.4g}", one.peak_activations),
                    has_bytes ? format_bytes(one.peak_bytes) : ""});
  }
  std::string table = detail::to_table({{"worker"},
                                        {fmt::format("busy ({})", unit.name)},
                                        {fmt::format("idle ({})", unit.name)},
                                        {"peak activations"},
                                        {"peak bytes"}},
                                       rows);
  if (timeline.num_workers() > max_workers) {
    table += fmt::format("... and {} more workers; --json has them all\n", timeline.num_workers() - max_workers);
  }
  return table;
}

std::string breakdown_table(const Timeline& timeline) {
  const Breakdown& breakdown = timeline.breakdown;
  const double total = timeline.num_workers() * timeline.makespan_seconds;
  const TimeUnit unit = time_unit(total);
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* title, double seconds) {
    rows.push_back({title, format_seconds(seconds, unit), format_percent(total > 0 ? seconds / total : 0)});
  };
  add("useful", breakdown.useful_seconds);
  add("recompute", breakdown.recompute_seconds);
  add("weight update", breakdown.weight_update_seconds);
  add("idle: load imbalance", breakdown.load_imbalance_seconds);
  add("idle: schedule", breakdown.bubble_seconds);
  add("idle: communication", breakdown.communication_seconds);
  add("workers x makespan", total);
  return detail::to_table({{"where the time went", Align::kLeft}, {unit.name}, {"share"}}, rows);
}

const Span& span_at(const Timeline& timeline, const SpanRef& ref) {
  return timeline.workers[ref.worker].spans[ref.index];
}

// How many actions of each kind stand on the critical path, and the longest wait between two of them.
std::string describe_critical_path(const Timeline& timeline) {
  if (timeline.critical_path.empty()) return "";
  std::vector<Action> actions;
  double longest_wait = 0;
  std::string where;
  for (std::size_t step = 0; step < timeline.critical_path.size(); ++step) {
    const Span& span = span_at(timeline, timeline.critical_path[step]);
    actions.push_back(span.action);
    if (step == 0) continue;
    const Span& before = span_at(timeline, timeline.critical_path[step - 1]);
    const double wait = span.start_seconds - before.end_seconds;
    if (wait <= longest_wait) continue;
    longest_wait = wait;
    where = fmt::format("{} to {}", to_string(before.action), to_string(span.action));
  }
  // Waits of rounding size are none.
  const bool waits = longest_wait > 1e-9 * timeline.makespan_seconds;
  return fmt::format(
      "critical path: {}, {}; {}\n", count_of(static_cast<std::int64_t>(actions.size()), "action"),
      count_kinds({actions}),
      waits ? fmt::format("longest wait {}, from {}", format_seconds(longest_wait), where) : "no waits between them");
}

// Whether the shortest action gets a column: where it does not, the gantt is a blur.
bool fits(const Timeline& timeline, const GanttOptions& gantt) {
  constexpr int kMargins = 10;  // worker number, bars, busy share
  double shortest = timeline.makespan_seconds;
  for (const WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) {
      const double seconds = span.end_seconds - span.start_seconds;
      if (seconds > 0) shortest = std::min(shortest, seconds);
    }
  }
  return shortest * (gantt.width - kMargins) >= timeline.makespan_seconds;
}

// Instead of a gantt that would not be legible: what its first and its last line say.
std::string headline(const Timeline& timeline, const GanttOptions& gantt) {
  return fmt::format(
      "{}: {}\nmakespan {}  bubble {}\nno gantt: the actions do not fit into {} columns; try --width N or --svg FILE\n",
      detail::printable(timeline.name),
      describe_size(timeline.num_workers(), timeline.num_stages, timeline.num_micro_batches),
      format_seconds(timeline.makespan_seconds), format_percent(timeline.bubble_fraction), gantt.width);
}

ordered_json breakdown_json(const Breakdown& breakdown) {
  return {{"useful", breakdown.useful_seconds},
          {"recompute", breakdown.recompute_seconds},
          {"weight_update", breakdown.weight_update_seconds},
          {"load_imbalance", breakdown.load_imbalance_seconds},
          {"bubble", breakdown.bubble_seconds},
          {"communication", breakdown.communication_seconds}};
}

std::string simulation_report(const Timeline& timeline, const GanttOptions& gantt) {
  std::string report = fits(timeline, gantt) ? to_gantt(timeline, gantt) : headline(timeline, gantt);
  report += describe_critical_path(timeline) + "\n";
  report += worker_table(timeline, gantt.max_workers) + "\n";
  report += breakdown_table(timeline);
  return report;
}

std::string simulation_json(const Timeline& timeline) {
  ordered_json json = {{"schedule", timeline.name},
                       {"num_stages", timeline.num_stages},
                       {"num_workers", timeline.num_workers()},
                       {"num_micro_batches", timeline.num_micro_batches},
                       {"makespan", timeline.makespan_seconds},
                       {"bubble_fraction", timeline.bubble_fraction}};
  const bool has_bytes = knows_bytes(timeline);
  json["workers"] = ordered_json::array();
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    const WorkerTimeline& one = timeline.workers[worker];
    json["workers"].push_back({{"worker", worker},
                               {"busy", one.busy_seconds},
                               {"idle", one.idle_seconds},
                               {"peak_activations", one.peak_activations},
                               {"peak_bytes", has_bytes ? ordered_json(one.peak_bytes) : nullptr}});
  }
  json["breakdown"] = breakdown_json(timeline.breakdown);
  json["critical_path"] = ordered_json::array();
  for (const SpanRef& ref : timeline.critical_path) {
    json["critical_path"].push_back(to_string(span_at(timeline, ref).action));
  }
  return indented_json(json);
}

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
  std::string workers;
  Capacity capacity;
  bool one_engine = false;
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
  try {
    return {static_cast<Capacity::Kind>(parse_choice(word, {"live", "free", "unbounded"})), 0};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}, or a whole number", error.what()));
  }
}

std::vector<int> parse_balance(std::string_view words) { return parse_list(words, parse_count); }

void check_usage(const SimulateCommand& command) {
  refuse_if(!command.file.empty() && !command.schedule.name.empty(),
            fmt::format("both a NAME, '{}', and --file are given", command.schedule.name), "give one of them");
  refuse_if(command.file.empty() && command.schedule.name.empty(), "which schedule? Neither NAME nor --file is given",
            fmt::format("the schedules are {}", schedule_names()));
  refuse_if(!command.profile.empty() && command.costs.any(), "--profile already says what the layers cost",
            "leave out --forward, --backward and the other costs, or leave out --profile");
  refuse_if(command.profile.empty() && !command.balance.empty(), "--balance splits the layers of a profile",
            "add --profile FILE, or leave --balance out");
  refuse_if(command.one_engine && command.capacity.kind != Capacity::Kind::kUnbounded,
            "with --one-engine no flow has a capacity", "leave out --capacity or --one-engine");
  const auto refuse_both = [](const char* option, const std::string& path, const char* other,
                              const std::string& other_path) {
    refuse_if(path == "-" && other_path == "-", fmt::format("{} and {} both read standard input", option, other),
              "name a file for one of them");
  };
  refuse_both("--file", command.file, "--profile", command.profile);
  refuse_both("--file", command.file, "--workers", command.workers);
  refuse_both("--profile", command.profile, "--workers", command.workers);
  refuse_if(!command.trace.empty() && is_same_file(command.trace, command.svg),
            fmt::format("--trace and --svg both name '{}'", command.svg), "name two files");
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

// Of a schedule by name; what is in a file has the stages that it has.
void check_number_of_layers(const SimulateCommand& command, const Schedule& schedule, const Profile& profile) {
  const ScheduleInfo* const info = command.file.empty() ? &find_schedule(command.schedule.name) : nullptr;
  const bool has_several = schedule.num_stages > schedule.num_workers();  // on a worker
  if (info == nullptr || !has_several || static_cast<std::size_t>(schedule.num_stages) <= profile.layers.size()) return;
  throw UsageError(fmt::format("{} has {} on {}, and the profile has {} for them", info->name,
                               count_of(schedule.num_stages, "stage"), count_of(schedule.num_workers(), "worker"),
                               count_of(static_cast<std::int64_t>(profile.layers.size()), "layer")),
                   fmt::format("take {}, which puts one stage on each, fewer --stages, or a profile of more layers",
                               with_one_stage_a_worker(*info).name));
}

// The layers of the profile on the stages of the schedule, as `gpipe plan` would put them.
std::vector<int> split_layers(const SimulateCommand& command, const Schedule& schedule, const Profile& profile,
                              const std::vector<WorkerCosts>& workers) {
  if (!command.balance.empty()) {
    const int num_stages = static_cast<int>(command.balance.size());
    refuse_if(num_stages != schedule.num_stages,
              fmt::format("--balance names {}, but the schedule has {}", count_of(num_stages, "stage"),
                          count_of(schedule.num_stages, "stage")),
              "give one number of layers for each stage");
    return command.balance;
  }
  check_number_of_layers(command, schedule, profile);
  PartitionOptions options;
  options.link = command.link;
  options.workers = workers_by_stage(workers, command.link, schedule.worker_of_stage);
  std::vector<int> layers_per_stage;
  for (const PartitionStage& stage : partition_for(profile, schedule, options).stages) {
    layers_per_stage.push_back(stage.num_layers);
  }
  return layers_per_stage;
}

Costs make_costs(const SimulateCommand& command, const Schedule& schedule) {
  std::vector<WorkerCosts> workers;
  if (!command.workers.empty()) workers = read_workers(command.workers, schedule.num_workers(), command.link);
  Costs costs;
  if (command.profile.empty()) {
    costs = uniform_costs(schedule, worker_share(command.costs));
    costs.link = command.link;
  } else {
    const Profile profile = read_profile(command.profile);
    costs = stage_costs(profile, split_layers(command, schedule, profile, workers), command.link,
                        PlanOptions().optimizer_slots);
  }
  costs.workers = std::move(workers);
  return costs;
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
    refuse_if(capacity.kind == Capacity::Kind::kFree && !flow.free_capacity,
              "the schedule is too large to compute free capacities", "use --capacity live, unbounded or a number");
    capacities.push_back(capacity.kind == Capacity::Kind::kLive ? flow.live_capacity : *flow.free_capacity);
  }
  return capacities;
}

int run_simulate(const SimulateCommand& command) {
  check_usage(command);
  const Schedule schedule = load_schedule(command);
  const Costs costs = make_costs(command, schedule);
  const bool has_bandwidth = std::isfinite(command.link.bytes_per_second) ||
                             std::any_of(costs.workers.begin(), costs.workers.end(), [](const WorkerCosts& worker) {
                               return worker.link_to_next && std::isfinite(worker.link_to_next->bytes_per_second);
                             });
  if (has_bandwidth && command.profile.empty() && !command.costs.output_bytes) {
    print_error("the bandwidth of links changes nothing: the messages have no size",
                "add --output-bytes SIZE or --profile FILE");
  }
  SimulateOptions options;
  if (command.one_engine) options.one_engine = message_order(schedule, costs);
  options.capacities = make_capacities(command.capacity, schedule, costs.routes);
  const Timeline timeline = simulate(schedule, costs, options);
  refuse_if(!std::isfinite(timeline.num_workers() * timeline.makespan_seconds),
            "the costs add up to more seconds than a number can hold", "give smaller costs");
  if (!command.trace.empty()) write_output_file(command.trace, to_chrome_trace(timeline), command.force);
  if (!command.svg.empty()) write_output_file(command.svg, to_svg(timeline), command.force);
  GanttOptions gantt;
  gantt.width = command.width.value_or(output_width());
  gantt.colour = shows_colour(command.colour);
  print(command.json ? simulation_json(timeline) : simulation_report(timeline, gantt));
  return kDone;
}

void add_profile_options(CLI::App& app, SimulateCommand& command) {
  const OptionGroup costs{app, "Costs of a profiled model"};
  costs.add("FILE", "--profile", command.profile, parse_path,
            "Costs of each layer, as JSON; split into stages as 'gpipe plan' does");
  costs.add("N,N,...", "--balance", command.balance, parse_balance, "Layers of each stage, such as 3,3,2, instead");
}

void add_output_options(CLI::App& app, SimulateCommand& command) {
  const OptionGroup output{app, "Output"};
  output.add_flag("--json", command.json, "Print one JSON object");
  output.add("FILE", "--trace", command.trace, parse_path, "Write a Chrome trace, for ui.perfetto.dev");
  output.add("FILE", "--svg", command.svg, parse_path, "Write a picture");
  output.add_flag("--force", command.force, "Replace plain files that exist");
  output.add("N", "--width", command.width, parse_width,
             "Columns of the gantt [the terminal's, or 100 where there is none]");
  output.add("WHEN", "--color,--colour", command.colour, parse_colour, "Colours: auto, always, never [auto]");
}

}  // namespace

void add_simulate_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<SimulateCommand>();
  CLI::App& sub = *app.add_subcommand("simulate");
  sub.add_option("NAME", command->schedule.name, fmt::format("One of {}", schedule_names()));
  OptionGroup{sub, "Size"}.add("FILE", "--file", command->file, parse_path,
                               "A schedule from a file instead, text or CSV; '-' reads standard input");
  add_size_options(sub, command->schedule);
  add_cost_options(sub, command->costs);
  add_profile_options(sub, *command);
  const OptionGroup messages{sub, "Messages"};
  messages.add("SIZE", "--output-bytes", command->costs.output_bytes, parse_bytes,
               "Size of one activation message between stages [0; a profile says it]");
  add_link_options(sub, command->link);
  add_workers_option(sub, "Messages", command->workers);
  messages.add("N", "--capacity", command->capacity, parse_capacity,
               "Messages a flow holds before its sender waits: live (the least that cannot deadlock), free (no sender "
               "waits), unbounded or a number [unbounded]");
  messages.add_flag("--one-engine", command->one_engine,
                    "A worker carries one message at a time, in the order in which they are put otherwise, as NCCL on "
                    "one stream does");
  add_output_options(sub, *command);
  set_help(sub, {"gpipe simulate (NAME --stages K --micro-batches M | --file F) [options]",
                 "Run a schedule on costs instead of tensors; say where the time went.",
                 "A backward is an input gradient and a weight gradient: B = I + W. Of these three, what "
                 "is not given follows from what is; all three given are taken as they are.",
                 "  gpipe simulate 1f1b --stages 4 --micro-batches 8\n"
                 "  gpipe simulate zb-v --stages 4 --micro-batches 8 --link-latency 0.1 --json\n"
                 "  gpipe simulate 1f1b --stages 4 --micro-batches 32 --profile model.json\n"
                 "  gpipe simulate 1f1b --stages 4 --micro-batches 32 --workers w.json\n"
                 "  gpipe simulate --file schedule.txt --trace trace.json --svg schedule.svg"});
  sub.callback([&chosen, command] { chosen = [command] { return run_simulate(*command); }; });
}

}  // namespace gpipe::cli
