#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/command_line.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/wrap.h"
#include "gpipe/gpipe.h"
#include "gpipe/version.h"
#include "train/bench_emulation.h"
#include "train/bench_run.h"
#include "train/commands.h"
#include "train/option_group.h"
#include "train/progress.h"

namespace gpipe::train {
namespace {

constexpr int kMostRepeats = 1000;
constexpr int kMostStages = 64;  // beyond them a number is a slip of the finger: each row is a pipeline of its own
constexpr int kMostMicroBatches = 1024;

constexpr const char* kDefect = "this is a defect of gpipe or of the machine";

struct BenchCommand {
  BenchOptions options;
  // Not given: what a run, or the emulation, has by itself.
  std::optional<std::vector<std::string>> modes;
  std::optional<std::vector<int>> num_stages;
  std::optional<std::vector<int>> num_micro_batches;
  std::optional<std::vector<std::string>> schedules;
  bool emulate = false;
  std::string json;
  std::string markdown;
  bool force = false;
  std::string rank_folder;
};

std::string choice_of(std::string_view word, const std::vector<std::string>& words) {
  return words[cli::parse_choice(word, words)];
}

// Names and numbers may be given once each: twice the same row measures nothing new.
template <typename Value>
std::vector<Value> parse_distinct(std::string_view words, Value (*parse)(std::string_view)) {
  std::vector<Value> values;
  for (Value& value : cli::parse_list(words, parse)) {
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(std::move(value));
  }
  return values;
}

std::vector<std::string> parse_bench_workloads(std::string_view words) {
  if (words == "all") return {};
  return parse_distinct<std::string>(
      words, [](std::string_view word) -> std::string { return choice_of(word, workload_names()); });
}
std::vector<std::string> parse_bench_rows(std::string_view words) {
  if (words == "all") return {};
  return parse_distinct<std::string>(
      words, [](std::string_view word) -> std::string { return choice_of(word, bench_row_kinds()); });
}
std::vector<std::string> bench_schedule_names() {
  std::vector<std::string> names = training_schedule_names();
  names.emplace_back(kSearchedSchedule);
  return names;
}
std::vector<std::string> parse_bench_schedules(std::string_view words) {
  return parse_distinct<std::string>(
      words, [](std::string_view word) -> std::string { return choice_of(word, bench_schedule_names()); });
}
std::vector<std::string> parse_bench_modes(std::string_view words) {
  return parse_distinct<std::string>(words, [](std::string_view word) -> std::string {
    const Recompute mode = parse_recompute(word);
    if (mode == Recompute::kAuto) throw InvalidArgument("'auto' is not measured; name never, except-last or always");
    return name(mode);
  });
}
std::vector<int> parse_bench_stages(std::string_view words) {
  return parse_distinct<int>(words, cli::parse_count_to<kMostStages>);
}
std::vector<int> parse_bench_micro_batches(std::string_view words) {
  return parse_distinct<int>(words, cli::parse_count_to<kMostMicroBatches>);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

BenchMachine this_machine() {
  return {processor_name(), static_cast<int>(std::max(1U, std::thread::hardware_concurrency())), TORCH_VERSION,
          GPIPE_VERSION};
}

void check_outputs(const BenchCommand& command) {
  for (const std::string& path : {command.json, command.markdown}) {
    if (!path.empty()) cli::check_output_file(path, command.force);
  }
  cli::refuse_if(
      !command.json.empty() && !command.markdown.empty() && cli::is_same_file(command.json, command.markdown),
      "--json and --markdown name the same file", "give them different names");
  cli::refuse_if(read_world().size > 1, "gpipe bench starts the processes that it needs itself",
                 "run it without a launcher");
}

void check_micro_batches(const std::vector<int>& num_micro_batches, const std::vector<Workload>& workloads) {
  const int most = *std::max_element(num_micro_batches.begin(), num_micro_batches.end());
  for (const Workload& workload : workloads) {
    cli::refuse_if(
        most > workload.num_samples(),
        fmt::format("--micro-batches {}: the batch of {} has {} samples", most, workload.name, workload.num_samples()),
        "give fewer micro-batches, or another --workload");
  }
}

void write_outputs(const BenchCommand& command, const std::string& json, const std::string& markdown) {
  if (!command.json.empty()) cli::write_output_file(command.json, json, command.force);
  if (!command.markdown.empty()) cli::write_output_file(command.markdown, markdown, command.force);
}

// A line that shows how far it is, with what is left.
class BenchLine {
 public:
  explicit BenchLine(std::string phase) : begin_seconds_(clock_seconds()) {
    progress_.phase = std::move(phase);
    reporter_.begin(begin_seconds_);
  }
  ~BenchLine() { reporter_.clear(); }
  BenchLine(const BenchLine&) = delete;
  BenchLine& operator=(const BenchLine&) = delete;

  void operator()(int num_done, int num_all) {
    const double now = clock_seconds();
    progress_.step = num_done;
    progress_.steps = num_all;
    if (num_done > 0) progress_.eta_seconds = (now - begin_seconds_) / num_done * (num_all - num_done);
    reporter_.update(progress_, now);
  }

 private:
  ProgressReporter reporter_ = make_progress_reporter(STDERR_FILENO);
  const double begin_seconds_;
  Progress progress_;
};

std::string machine_line(const BenchMachine& machine) {
  return fmt::format("{}; gpipe {}, libtorch {}, {} processor{}\n", machine.processor, machine.gpipe, machine.libtorch,
                     machine.num_processors, machine.num_processors == 1 ? "" : "s");
}

std::string introduction(const BenchOptions& options) {
  return cli::wrapped(fmt::format("A step is forward and backward of the whole batch. Each of {} turns runs every row "
                                  "once; speeds are over \"plain, 1 thread\" in the same turn, with their quartiles. "
                                  "docs/performance.md explains the columns.",
                                  options.num_repeats),
                      80) +
         "\n";
}

void take_given(const BenchCommand& command, BenchOptions& options) {
  options.num_stages = command.num_stages.value_or(options.num_stages);
  options.num_micro_batches = command.num_micro_batches.value_or(options.num_micro_batches);
  options.schedules = command.schedules.value_or(options.schedules);
  if (!command.modes) return;
  options.recompute.clear();
  for (const std::string& mode : *command.modes) options.recompute.push_back(parse_recompute(mode));
}

EmulationOptions emulation_options(const BenchCommand& command) {
  EmulationOptions options;
  options.num_stages = command.num_stages.value_or(options.num_stages);
  options.num_micro_batches = command.num_micro_batches.value_or(options.num_micro_batches);
  std::sort(options.num_stages.begin(), options.num_stages.end());
  std::sort(options.num_micro_batches.begin(), options.num_micro_batches.end());
  for (const auto& [name, given] :
       {std::pair("--schedules", command.schedules), std::pair("--recompute", command.modes)}) {
    cli::refuse_if(given && given->size() > 1, fmt::format("{}: an emulation has one", name), "name one of them");
  }
  if (command.schedules) options.schedule = command.schedules->front();
  const ScheduleInfo& schedule = find_schedule(options.schedule);
  cli::refuse_if(
      schedule.default_chunks > 1 || make_schedule(schedule.name, 2, 2).splits_backward(),
      fmt::format("{} is not emulated: it has several stages a worker, or splits the backward", schedule.name),
      "gpipe and 1f1b are");
  if (command.modes) options.recompute = parse_recompute(command.modes->front());
  options.num_repeats = command.options.num_repeats;
  return options;
}

int run_emulation(const BenchCommand& command) {
  const EmulationOptions options = emulation_options(command);
  cli::refuse_if(!command.options.rows.empty(), "--rows mean nothing with --emulate", "leave out one of them");
  std::vector<Workload> workloads;
  for (const std::string& name :
       command.options.workloads.empty() ? emulated_workload_names() : command.options.workloads) {
    const auto& names = emulated_workload_names();
    cli::refuse_if(std::find(names.begin(), names.end(), name) == names.end(), fmt::format("{} is not emulated", name),
                   fmt::format("{} are", fmt::join(names, " and ")));
    workloads.push_back(make_emulated_workload(name, command.options.quick));
  }
  check_outputs(command);
  check_micro_batches(options.num_micro_batches, workloads);
  const BenchMachine machine = this_machine();
  cli::print(machine_line(machine));
  cli::print(
      cli::wrapped("EMULATION of K such processors: every action is run and timed by the processor time of its "
                   "thread, and placed by the simulator. A fast interconnect has 100 Gbit/s and 5 us, a slow one "
                   "1 Gbit/s and 50 us. docs/performance.md says what that leaves out.",
                   80) +
      "\n");
  std::vector<Emulation> emulations;
  for (const Workload& workload : workloads) {
    cli::print(fmt::format("\n{}\n", cli::wrapped(fmt::format("{}; {}, recompute {}", workload.description,
                                                              options.schedule, name(options.recompute)),
                                                  80)));
    cli::flush_output();
    {
      BenchLine line(workload.name);
      emulations.push_back(emulate(workload, options, std::ref(line)));
    }
    cli::print(emulation_text(emulations.back()));
    cli::flush_output();
  }
  write_outputs(command, emulation_json(machine, emulations), emulation_markdown(machine, emulations));
  return cli::kDone;
}

int run_bench_command(const BenchCommand& command) {
  if (!command.rank_folder.empty()) {
    run_bench_rank(command.rank_folder);
    return cli::kDone;
  }
  if (command.emulate) {
    try {
      return run_emulation(command);
    } catch (const BenchError& error) {
      cli::print_error(error.what(), kDefect);
      return cli::kNegativeAnswer;
    }
  }
  BenchOptions options = command.options;
  take_given(command, options);
  std::vector<Workload> workloads;
  for (const std::string& name : options.workloads.empty() ? workload_names() : options.workloads) {
    workloads.push_back(make_workload(name, options.quick));
  }
  check_outputs(command);
  check_micro_batches(options.num_micro_batches, workloads);
  const BenchMachine machine = this_machine();
  cli::print(machine_line(machine) + introduction(options));
  std::vector<BenchRun> runs;
  std::vector<std::string> wrong;
  for (const Workload& workload : workloads) {
    cli::print(fmt::format("\n{}\n", cli::wrapped(workload.description, 80)));
    cli::flush_output();
    for (const int num_micro_batches : options.num_micro_batches) {
      BenchLine line(fmt::format("{}, M={}", workload.name, num_micro_batches));
      runs.push_back(run_bench(workload, num_micro_batches, options, std::ref(line)));
      for (const std::string& row : rows_with_other_losses(runs.back())) {
        wrong.push_back(fmt::format("{} of {}, M={}", row, workload.name, num_micro_batches));
      }
    }
    for (auto run = runs.end() - static_cast<std::ptrdiff_t>(options.num_micro_batches.size()); run != runs.end();
         ++run) {
      cli::print("\n" + bench_text(*run));
    }
    cli::flush_output();
  }
  write_outputs(command, bench_json(machine, runs), bench_markdown(machine, runs));
  if (wrong.empty()) return cli::kDone;
  cli::flush_output();
  cli::print_error(fmt::format("these do not have the loss of the plain loop, bit for bit: {}", fmt::join(wrong, "; ")),
                   kDefect);
  return cli::kNegativeAnswer;
}

}  // namespace

void add_bench_command(CLI::App& app, cli::Run& chosen) {
  auto command = std::make_shared<BenchCommand>();
  BenchOptions& bench = command->options;
  CLI::App& sub = *app.add_subcommand("bench");
  const OptionGroup what{sub, "What is run"};
  what.add("NAME,...", "--workload", bench.workloads, parse_bench_workloads,
           fmt::format("{} [all]", fmt::join(workload_names(), ", ")));
  what.add("KIND,...", "--rows", bench.rows, parse_bench_rows,
           fmt::format("{} [all]", fmt::join(bench_row_kinds(), ", ")));
  what.add("K,...", "--stages", command->num_stages, parse_bench_stages, "Workers of a pipeline [1,2; emulated 2,4,8]");
  what.add("M,...", "--micro-batches", command->num_micro_batches, parse_bench_micro_batches,
           "Each is a run of its own, with a plain loop of as many [8; emulated 1,4,32]");
  what.add("NAME,...", "--schedules", command->schedules, parse_bench_schedules,
           "See gpipe schedule --list; or search [gpipe,1f1b,zb-v; emulated gpipe]");
  what.add("MODE,...", "--recompute", command->modes, parse_bench_modes, "never, except-last, always [never]");
  what.add_flag("--emulate", command->emulate,
                "Tables 2, 3 and 4 of the GPipe paper in miniature, on K processors like this one that are emulated");
  what.add_flag("--quick", bench.quick, "Small sizes, for a first look: the figures mean little");
  const OptionGroup measuring{sub, "Measuring"};
  measuring.add_default("N", "--repeats", bench.num_repeats, cli::parse_count_to<kMostRepeats>,
                        "Turns that count, after one that warms up");
  measuring.add_default("FILE", "--python", bench.python, cli::parse_path, "The Python that peers run in");
  const OptionGroup output{sub, "Output"};
  output.add("FILE", "--json", command->json, cli::parse_path, "Write everything that was measured there");
  output.add("FILE", "--markdown", command->markdown, cli::parse_path, "Write the tables there");
  output.add_flag("--force", command->force, "Replace plain files that are there already");
  sub.add_option("--as-rank", command->rank_folder)->group("");  // for ranks that the command starts: see Note [Turns]
  cli::set_help(sub, {"gpipe bench [options]", "Measure steps against plain libtorch and others, side by side",
                      "Runs one step in many ways, in turns: a plain loop on libtorch, data parallel, pipelines on "
                      "threads and on processes, and what else is installed. Says when the machine was too busy.",
                      "  gpipe bench --quick\n"
                      "  gpipe bench --workload transformer --micro-batches 8,16 --json bench.json\n"
                      "  gpipe bench --workload cnn --stages 2 --rows plain,threads --recompute never,always\n"
                      "  gpipe bench --emulate --workload transformer --recompute always"});
  sub.callback([&chosen, command] { chosen = [command] { return run_bench_command(*command); }; });
}

}  // namespace gpipe::train
