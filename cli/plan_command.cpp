#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/program.h"
#include "cli/quantity.h"
#include "cli/schedule_options.h"
#include "cli/terminal.h"
#include "cli/wrap.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/forecast.h"
#include "gpipe/simulate/planner.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

using detail::Align;
using detail::Column;
using detail::Forecast;
using detail::forecast;
using detail::indented_json;
using detail::long_schedule_of;

using nlohmann::ordered_json;

// Longest name of a layer and longest bar. The first that fits the width is taken, else the last.
struct Detail {
  std::size_t name_width;
  int bar_width;
};
constexpr Detail kDetails[] = {{40, 20}, {30, 20}, {24, 10}, {18, 10}, {18, 0}, {12, 0}};

// The names of the first and the last layer of each stage.
std::vector<std::pair<std::string, std::string>> layer_ranges(const Profile& profile, const Plan& plan) {
  std::vector<std::pair<std::string, std::string>> ranges;
  std::size_t layer = 0;
  for (const int num_layers : plan.layers_per_stage) {
    const std::size_t last = layer + static_cast<std::size_t>(num_layers) - 1;
    ranges.emplace_back(profile.layers[layer].name, profile.layers[last].name);
    layer = last + 1;
  }
  return ranges;
}

std::string bar(double part, double whole, int width) {
  return whole > 0 ? std::string(static_cast<std::size_t>(std::lround(width * part / whole)), '#') : "";
}

std::string stage_table(const Profile& profile, const Plan& plan, const Detail& detail) {
  const auto ranges = layer_ranges(profile, plan);
  const TimeUnit unit = time_unit(plan.partition.slowest_seconds);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    const PartitionStage& one = plan.partition.stages[stage];
    rows.push_back({fmt::format("{}", stage), fmt::format("{}", one.num_layers),
                    shortened(detail::printable(ranges[stage].first), detail.name_width),
                    shortened(detail::printable(ranges[stage].second), detail.name_width),
                    format_seconds(one.seconds, unit),
                    bar(one.seconds, plan.partition.slowest_seconds, detail.bar_width), format_bytes(one.bytes)});
    if (!plan.recompute_by_stage.empty()) rows.back().emplace_back(name(plan.recompute_by_stage[stage]));
    if (!plan.rematerialization.empty()) {
      const std::string runs = to_text(plan.rematerialization[stage]);
      rows.back().push_back(runs.empty() ? "-" : shortened(runs, detail.name_width));
    }
  }
  std::vector<Column> columns = {{"stage"},
                                 {"layers"},
                                 {"first", Align::kLeft},
                                 {"last", Align::kLeft},
                                 {fmt::format("time ({})", unit.name)},
                                 {"", Align::kLeft},
                                 {"bytes"}};
  if (!plan.recompute_by_stage.empty()) columns.push_back({"recompute", Align::kLeft});
  if (!plan.rematerialization.empty()) columns.push_back({"dropped layers", Align::kLeft});
  return detail::to_table(columns, rows);
}

const char* recompute_text(const Plan& plan) {
  if (!plan.rematerialization.empty()) return "per layer";
  return plan.recompute_by_stage.empty() ? name(plan.recompute) : "per stage";
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

std::string plan_report(const Profile& profile, const Plan& plan, const Forecast& step, int width) {
  std::string report = fmt::format(
      "{}: {}, recompute {}; {}\n\n", plan.schedule,
      describe_size(plan.num_workers(), static_cast<int>(plan.layers_per_stage.size()), plan.num_micro_batches),
      recompute_text(plan), count_of(static_cast<std::int64_t>(profile.layers.size()), "layer"));
  std::string table;
  for (const Detail& detail : kDetails) {
    table = stage_table(profile, plan, detail);
    if (widest_line(table) <= static_cast<std::size_t>(width)) break;
  }
  report += table + "\n";
  // With several chunks a worker runs several of the stages, and the formula is not about its step.
  if (plan.chunks == 1) {
    report += fmt::format("makespan   {} = sum(t) + (M - 1) max(t) over the stages' times t\n",
                          format_seconds(plan.partition.makespan_seconds));
  }
  report += fmt::format("simulated  {}, bubble {}\n", format_seconds(step.step_seconds),
                        format_percent(step.bubble_fraction));
  const auto fullest = std::max_element(step.peak_bytes.begin(), step.peak_bytes.end());
  report +=
      fmt::format("memory     {} at most, on worker {}\n", format_bytes(*fullest), fullest - step.peak_bytes.begin());
  return report;
}

std::string plan_json(const Profile& profile, const PlanSearch& search, const Forecast& step) {
  const Plan& plan = search.best;
  ordered_json json = {{"schedule", plan.schedule},
                       {"num_workers", plan.num_workers()},
                       {"num_stages", plan.layers_per_stage.size()},
                       {"num_micro_batches", plan.num_micro_batches},
                       {"chunks", plan.chunks},
                       {"recompute", name(plan.recompute)},
                       {"layers_per_stage", plan.layers_per_stage}};
  json["stages"] = ordered_json::array();
  const auto ranges = layer_ranges(profile, plan);
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    const Recompute mode = plan.recompute_by_stage.empty() ? plan.recompute : plan.recompute_by_stage[stage];
    json["stages"].push_back({{"layers", plan.layers_per_stage[stage]},
                              {"first", ranges[stage].first},
                              {"last", ranges[stage].second},
                              {"seconds", plan.partition.stages[stage].seconds},
                              {"bytes", plan.partition.stages[stage].bytes},
                              {"recompute", name(mode)}});
    if (!plan.rematerialization.empty()) {
      json["stages"].back()["rematerialization"] = to_text(plan.rematerialization[stage]);
    }
  }
  // The formula is for one stage a worker; with several, only the simulation says how long a step takes.
  json["makespan"] = plan.chunks == 1 ? plan.partition.makespan_seconds : step.step_seconds;
  json["simulated_makespan"] = step.step_seconds;
  json["bubble_fraction"] = step.bubble_fraction;
  json["peak_bytes"] = plan.predicted_peak_bytes;
  json["candidates"] = ordered_json::array();
  for (const PlanCandidate& candidate : search.candidates) {
    json["candidates"].push_back({{"schedule", candidate.schedule},
                                  {"chunks", candidate.chunks},
                                  {"num_micro_batches", candidate.num_micro_batches},
                                  {"recompute", candidate.recompute}});
    ordered_json& entry = json["candidates"].back();
    if (candidate.missing_bytes > 0) {
      entry["missing_bytes"] = candidate.missing_bytes;
    } else {
      entry["simulated_makespan"] = candidate.step_seconds;
      entry["fullest_bytes"] = candidate.fullest_bytes;
    }
  }
  return indented_json(json);
}

// Options of `gpipe profile`, which profiles a TorchScript file on the way: their names and values, as they were given.
struct ScriptProfile {
  std::string torchscript;
  std::map<std::string, std::string> options;
};

struct PlanCommand {
  std::string profile;
  ScriptProfile script;
  ScheduleOptions schedule;
  PlanOptions options;  // what is not in `schedule`
  std::vector<double> speeds;
  std::string workers;
  std::string out;
  bool no_rematerialize = false;
  bool explain = false;
  bool json = false;
  bool force = false;
};

Objective parse_objective(std::string_view word) {
  return static_cast<Objective>(parse_choice(word, {"makespan", "slowest-stage"}));
}

std::vector<double> parse_speeds(std::string_view words) { return parse_list(words, parse_speed); }

constexpr const char* kAuto = "auto";

void check_usage(const PlanCommand& command) {
  const bool has_script = !command.script.torchscript.empty();
  refuse_if(command.profile.empty() && !has_script, "--profile is missing",
            "add --profile FILE, the costs of each layer as JSON");
  for (const auto& [option, value] : command.script.options) {
    refuse_if(!value.empty() && !has_script, fmt::format("{} is about --torchscript, and there is none", option),
              fmt::format("add --torchscript FILE, or leave {} out", option));
  }
  const bool is_searched = command.schedule.name == kSearchedSchedule;
  if (command.schedule.name != kAuto && !is_searched) find_schedule(command.schedule.name, plannable_schedule_names());
  require_schedule(command.schedule);
  refuse_if(*command.schedule.num_micro_batches == 0 && command.options.mini_batch_samples == 0,
            "--micro-batches auto needs the size of the mini-batch", "add --mini-batch N, its samples");
  refuse_if(command.no_rematerialize && command.schedule.recompute != Recompute::kAuto,
            "--no-rematerialize is about --recompute auto", "add that, or leave --no-rematerialize out");
  refuse_if(command.force && command.out.empty(), "--force is about --out, and there is none",
            "add --out FILE, or leave --force out");
  refuse_if(!command.speeds.empty() && !command.workers.empty(), "--workers already says how fast the workers are",
            "leave --worker-speed out");
  refuse_if(command.profile == "-" && command.workers == "-", "--profile and --workers both read standard input",
            "name a file for one of them");
  const auto num_speeds = static_cast<std::int64_t>(command.speeds.size());
  refuse_if(num_speeds > 0 && num_speeds != *command.schedule.num_workers,
            fmt::format("--worker-speed has {} for {}", count_of(num_speeds, "number"),
                        count_of(*command.schedule.num_workers, "worker")),
            "give one number for each worker");
  if (!command.out.empty()) check_output_file(command.out, command.force);
}

// A file that goes with this object.
class TemporaryFile {
 public:
  TemporaryFile() {
    path_ = (std::filesystem::temp_directory_path() / "gpipe-profile-XXXXXX").string();
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) throw UsageError(fmt::format("{}: {}", path_, std::strerror(errno)), "set TMPDIR to a folder");
    close(descriptor);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Nothing if `gpipe profile` failed, which has said why; `exit_code` is then its own.
std::optional<Profile> profile_of_script(const ScriptProfile& script, int& exit_code) {
  const TemporaryFile file;
  std::vector<std::string> words = {"profile", "--torchscript", script.torchscript, "--out", file.path(), "--force"};
  for (const auto& [option, value] : script.options) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  }
  exit_code = run_quietly(path_from_this_program(kTrainProgram), words, kIfTrainIsMissing);
  if (exit_code != kDone) return std::nullopt;
  return read_profile(file.path());
}

int run_plan(PlanCommand command) {
  check_usage(command);
  int exit_code = kDone;
  const std::optional<Profile> found = command.script.torchscript.empty()
                                           ? std::optional(read_profile(command.profile))
                                           : profile_of_script(command.script, exit_code);
  if (!found) return exit_code;
  const Profile& profile = *found;
  PlanOptions& options = command.options;
  options.num_stages = *command.schedule.num_workers;
  options.num_micro_batches = *command.schedule.num_micro_batches;
  options.schedule = command.schedule.name;
  options.chunks = command.schedule.chunks.value_or(0);
  options.recompute = command.schedule.recompute.value_or(Recompute::kNever);
  options.rematerialize = !command.no_rematerialize;
  options.workers = command.workers.empty() ? workers_of_speed(command.speeds)
                                            : read_workers(command.workers, options.num_stages, options.link);
  const PlanSearch search = search_plans(profile, options);
  const Forecast step = forecast(long_schedule_of(search.best), search.best.costs);
  if (!command.out.empty()) write_output_file(command.out, to_json(search.best), command.force);
  if (command.json) {
    print(plan_json(profile, search, step));
    return kDone;
  }
  print(plan_report(profile, search.best, step, output_width()));
  if (command.explain) {
    const std::string table = explain(search);
    const auto num_rows = std::count(table.begin(), table.end(), '\n') - 1;
    print(fmt::format("\n{}, best first\n{}", count_of(num_rows, "candidate"), table));
  }
  return kDone;
}

void add_planning_options(CLI::App& app, PlanCommand& command) {
  const OptionGroup planning{app, "Planning"};
  PlanOptions& options = command.options;
  planning.add_flag("--no-rematerialize", command.no_rematerialize,
                    "With --recompute auto: recompute stages as a whole, never some of their layers");
  planning.add("N", "--mini-batch", options.mini_batch_samples, parse_count,
               "Samples of the mini-batch: costs are scaled to its micro-batches [as profiled]");
  planning.add("SIZE", "--memory-limit", options.memory_limit_bytes, parse_bytes,
               "Bytes a worker has, such as 2GiB [unlimited]");
  planning.add("WHAT", "--objective", options.objective, parse_objective,
               "makespan: the simulated step; slowest-stage: the longest time of a stage, for the cut alone "
               "[makespan]");
  planning.add("X,X,...", "--worker-speed", command.speeds, parse_speeds,
               "Speed of each worker, 1 as profiled, such as 1,1,0.5 [1 each]");
  add_workers_option(app, "Planning", command.workers);
  planning.add("N", "--optimizer-slots", options.optimizer_slots, parse_index,
               "Tensors of optimizer state a weight: 0 SGD, 1 momentum, 2 Adam [2]");
}

void add_output_options(CLI::App& app, PlanCommand& command) {
  const OptionGroup output{app, "Output"};
  output.add_flag("--explain", command.explain, "Print what was tried, best first");
  output.add("FILE", "--out", command.out, parse_path, "Write the plan, as JSON");
  output.add_flag("--force", command.force, "Replace a plain file that exists");
  output.add_flag("--json", command.json, "Print one JSON object");
}

void add_model_options(CLI::App& app, PlanCommand& command) {
  const OptionGroup model{app, "Model"};
  CLI::Option* const profile = model.add("FILE", "--profile", command.profile, parse_path,
                                         "Costs of each layer, as JSON; '-' reads standard input");
  model
      .add("FILE", "--torchscript", command.script.torchscript, parse_path,
           "A TorchScript file instead, which 'gpipe profile' measures first")
      ->excludes(profile);
  const auto pass_on = [&](const char* type, const char* name, const char* description) {
    model.add(type, name, command.script.options[name], parse_path, description);
  };
  pass_on("FILE", "--inputs", "What that is given (safetensors) [made-up images]");
  pass_on("FILE", "--targets", "For its loss (safetensors)");
  pass_on("NAME", "--loss", "cross-entropy or mse");
  pass_on("N", "--samples", "Of the micro-batch that is run");
  pass_on("N", "--image", "Height and width of made-up images");
  pass_on("N", "--channels", "Of them");
}

}  // namespace

void add_plan_command(CLI::App& app, Run& chosen) {
  const auto command = std::make_shared<PlanCommand>();
  command->schedule.name = command->options.schedule;
  CLI::App& sub = *app.add_subcommand("plan");
  add_model_options(sub, *command);
  sub.add_option("--schedule", command->schedule.name,
                 fmt::format("The schedule to plan for; auto: choose; search: make one for the model [{}]",
                             command->schedule.name))
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
            "  gpipe plan --profile p.json --stages 4 --micro-batches 32 --workers w.json\n"
            "  gpipe plan --profile p.json --stages 4 --micro-batches 32 --schedule auto\n"
            "  gpipe plan --torchscript model.pt --image 64 --stages 2 --micro-batches 8"});
  sub.callback([&chosen, command] { chosen = [command] { return run_plan(*command); }; });
}

}  // namespace gpipe::cli
