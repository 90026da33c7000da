#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/schedule_list.h"
#include "cli/schedule_options.h"
#include "cli/schedule_search.h"
#include "cli/terminal.h"
#include "gpipe/report/gantt.h"
#include "gpipe/report/svg.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::cli {
namespace {

enum class Format { kText, kCsv, kGantt, kSvg, kMessages };

struct ScheduleCommand {
  ScheduleOptions schedule;
  SearchOptions search;
  Format format = Format::kText;
  bool descending = false;
  bool updates = false;
  bool list = false;
  std::string output;
  bool force = false;
  Colour colour = Colour::kAuto;
  std::optional<int> width;
};

Format parse_format(std::string_view word) {
  return static_cast<Format>(parse_choice(word, {"text", "csv", "gantt", "svg", "messages"}));
}

Schedule make_schedule(const ScheduleCommand& command) {
  const Schedule ascending = make_schedule(command.schedule);
  if (!command.descending) return ascending;
  if (command.schedule.name != "gpipe") {
    throw UsageError(fmt::format("--descending is an order of 'gpipe' only, not of '{}'", command.schedule.name),
                     "leave --descending out");
  }
  return with_recompute(schedules::gpipe(*command.schedule.num_workers, *command.schedule.num_micro_batches,
                                         schedules::BackwardOrder::kDescending),
                        command.schedule.recompute.value_or(Recompute::kNever));
}

// A schedule, and the costs it is drawn with.
struct Found {
  Schedule schedule;
  Costs costs;
  std::vector<int> layers_per_stage;  // of a searched one
};

// By name, or searched.
Found find_or_search(const ScheduleCommand& command, const CLI::App& app) {
  if (command.schedule.name != kSearchedSchedule) {
    refuse_if(command.search.any(app),
              fmt::format("'{}' is no search, and options of one are given", command.schedule.name),
              "see 'gpipe schedule --help', under Search");
    refuse_if(command.schedule.recompute == Recompute::kAuto || command.schedule.num_micro_batches == 0,
              "only a search and 'gpipe plan' choose what is auto", "give --recompute and --micro-batches");
    Found named = {make_schedule(command), {}, {}};
    named.costs = uniform_costs(named.schedule);
    return named;
  }
  refuse_if(command.descending, "--descending is an order of 'gpipe' only", "leave --descending out");
  check_usage(command.schedule, command.search, command.force);
  refuse_if(!command.search.plan.empty() && is_same_file(command.search.plan, command.output),
            fmt::format("--plan and --output both name '{}'", command.output), "name two files");
  const Plan plan = search_schedule(command.schedule, command.search, command.force);
  return {schedule_of(plan), plan.costs, plan.layers_per_stage};
}

// Where the costs have no time of an update, it is drawn as long as a forward.
void add_updates(Found& found) {
  found.schedule = with_updates(std::move(found.schedule));
  for (StageCosts& stage : found.costs.stages) {
    if (stage.update_seconds == 0) stage.update_seconds = stage.forward_seconds;
  }
}

// What the actions do not say: without --balance, `gpipe simulate` cuts the layers of a profile anew.
std::string comment(const Found& found) {
  if (found.layers_per_stage.empty()) return "";
  return fmt::format("# layers per stage: {0} (gpipe simulate --balance {0})\n",
                     fmt::join(found.layers_per_stage, ","));
}

std::string to_format(const Found& found, const ScheduleCommand& command) {
  if (command.format == Format::kText) return comment(found) + to_text(found.schedule);
  if (command.format == Format::kCsv) return comment(found) + to_csv(found.schedule);
  if (command.format == Format::kMessages) {
    return to_text(make_flow_table(found.schedule, found.costs.routes), message_order(found.schedule, found.costs));
  }
  const Timeline timeline = simulate(found.schedule, found.costs);
  if (command.format == Format::kSvg) return to_svg(timeline);
  GanttOptions options;
  options.width = command.width.value_or(output_width());
  options.colour = command.output.empty() ? shows_colour(command.colour) : command.colour == Colour::kAlways;
  return to_gantt(timeline, options);
}

int run_schedule(const ScheduleCommand& command, const CLI::App& app) {
  if (command.list) {
    constexpr int kWidest = 80;
    print(schedule_list(command.schedule, command.width.value_or(std::min(output_width(), kWidest))));
    return kDone;
  }
  refuse_if(command.width && command.format != Format::kGantt, "--width is about --format gantt",
            "add that, or leave --width out");
  if (!command.output.empty()) check_output_file(command.output, command.force);
  Found found = find_or_search(command, app);
  if (command.updates) add_updates(found);
  const std::string text = to_format(found, command);
  if (command.output.empty()) {
    print(text);
  } else {
    write_output_file(command.output, text, command.force);
  }
  return kDone;
}

void add_output_options(CLI::App& app, ScheduleCommand& command) {
  const OptionGroup output{app, "Output"};
  output.add(
      "FORMAT", "--format", command.format, parse_format,
      "text: a line a worker; csv: PyTorch's form; gantt, svg: drawn at F = 1, B = 2, I = W = 1, R = 1, or as "
      "profiled; messages: those between workers, in the order in which one engine a worker carries them [text]");
  output.add("FILE", "--output", command.output, parse_path, "Write to FILE instead of standard output");
  output.add_flag("--force", command.force, "Replace FILE if it exists and is a plain file");
  output.add("N", "--width", command.width, parse_width,
             "Columns of the gantt [the terminal's, or 100 where there is none]");
  output.add("WHEN", "--color,--colour", command.colour, parse_colour,
             "Colours of the gantt: auto, always, never [auto]");
}

}  // namespace

void add_schedule_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<ScheduleCommand>();
  CLI::App& sub = *app.add_subcommand("schedule");
  sub.add_option("NAME", command->schedule.name,
                 fmt::format("One of {}; or search, for one made for a model", schedule_names()));
  add_open_size_options(sub, command->schedule);
  OptionGroup{sub, "Size"}.add_flag("--descending", command->descending,
                                    "Backwards from the last micro-batch to the first, as in the paper (gpipe only; "
                                    "not canonical)");
  OptionGroup{sub, "Size"}.add_flag("--updates", command->updates,
                                    "With the optimizer step of each stage as an action of the schedule, U");
  add_output_options(sub, *command);
  add_search_options(sub, command->search);
  add_link_options(sub, command->search.options.link);
  OptionGroup{sub, "Other"}.add_flag(
      "--list", command->list,
      "List the schedules, what they cost and what they are good for [--stages 4 --micro-batches 8]");
  set_help(sub, {"gpipe schedule NAME --stages K --micro-batches M [options]",
                 "Print a schedule: what each worker does, in order.",
                 "An action is F forward, R recompute, B backward, I input gradient or W weight "
                 "gradient, then its micro-batch: F0; or U update, with --updates. '2F0' names stage 2 where a worker "
                 "has several.",
                 "  gpipe schedule --list\n"
                 "  gpipe schedule --list --stages 8 --micro-batches 16\n"
                 "  gpipe schedule 1f1b --stages 4 --micro-batches 8\n"
                 "  gpipe schedule gpipe --stages 4 --micro-batches 8 --format gantt\n"
                 "  gpipe schedule interleaved --stages 4 --chunks 2 --micro-batches 8\n"
                 "  gpipe schedule zb-v --stages 4 --micro-batches 8 --format svg --output v.svg\n"
                 "  gpipe schedule search --profile p.json --stages 4 --micro-batches 8"});
  sub.callback([&chosen, &sub, command] { chosen = [command, &sub] { return run_schedule(*command, sub); }; });
}

}  // namespace gpipe::cli
