#include "train/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "cli/quantity.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/wrap.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"
#include "train/advice.h"
#include "train/progress.h"
#include "train/summary.h"

namespace gpipe::train {
namespace {

using cli::format_percent;
using cli::format_seconds;

constexpr std::size_t kHeaderWidth = 80;
constexpr std::size_t kHeaderIndent = 2;

std::string ending_text(const TrainingResult& result, const TrainerOptions& options) {
  switch (result.ending) {
    case Ending::kDone:
      return "done";
    case Ending::kInterrupted:
    case Ending::kPreempted:
      return fmt::format("interrupted after step {}{}", result.num_steps,
                         result.checkpoint.empty() ? "" : "; go on with the same command and --resume");
    case Ending::kNotFinite:
      return fmt::format(
          "stopped: the loss or its gradient is not finite at step {}{}; try a smaller --lr, a longer --warmup or "
          "--clip 1",
          result.num_steps + 1,
          options.save_path.empty() || result.num_steps == 0 ? "" : ", the weights of the step before are kept");
  }
  return "";
}

// Where workers x time went.
std::string time_table(const TrainingResult& result) {
  const double total = result.num_workers * result.seconds;
  const auto num_steps = static_cast<double>(result.num_steps - result.first_step);
  const double outside =
      result.seconds - result.step_seconds - result.update_seconds - result.data_seconds - result.checkpoint_seconds;
  const double actions =
      result.useful_seconds + result.recompute_seconds + result.imbalance_seconds + result.idle_seconds;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* title, double seconds) {
    rows.push_back({title, format_seconds(seconds / num_steps / result.num_workers),
                    format_percent(total > 0 ? seconds / total : 0)});
  };
  add("forward and backward", result.useful_seconds);
  if (result.recompute_seconds > 0) add("recompute", result.recompute_seconds);
  add("idle: load imbalance", result.imbalance_seconds);
  add("idle: waiting for other stages", result.idle_seconds);
  add("set-up of the step", result.num_workers * result.step_seconds - actions);
  add("weight update", result.num_workers * result.update_seconds);
  add("waiting for data", result.num_workers * result.data_seconds);
  if (result.checkpoint_seconds > 0) add("saving checkpoints", result.num_workers * result.checkpoint_seconds);
  add("loop and reports", result.num_workers * outside);
  return cli::to_table({"<where the time went", "a step", "share"}, rows);
}

// The last step beside what the plan predicts. Nothing if it was another one: the rest of an epoch may make fewer
// micro-batches.
std::string compared_with(const Plan& plan, const TrainingResult& result) {
  const Timeline& measured = result.last_timeline;
  if (measured.num_micro_batches != plan.num_micro_batches) return "";
  StagePeakBytes peaks;
  if (plan.chunks == 1 && !result.memory.empty()) {
    peaks.predicted = plan.predicted_peak_bytes;
    for (const StageMemory& stage : result.memory) peaks.measured.push_back(stage.peak_bytes);
  }
  return "the last step beside the plan: " +
         to_text(compare(simulate(schedule_of(plan), plan.costs), measured, peaks), cli::output_width());
}

//   stage  layers  parameters    busy     peak
//       0  0-6          12345  91.2 %  120 MiB
std::string stage_table(const TrainingResult& result, const Pipeline& pipeline, const LayerChain& chain) {
  std::vector<std::vector<std::string>> rows;
  std::size_t first = 0;
  const std::vector<std::int64_t> layers = num_parameters_by_layer(chain);
  for (std::size_t stage = 0; stage < pipeline->layers_per_stage().size(); ++stage) {
    const std::size_t end = first + static_cast<std::size_t>(pipeline->layers_per_stage()[stage]);
    const auto num_parameters = std::accumulate(layers.begin() + first, layers.begin() + end, std::int64_t{0});
    const double busy = result.makespan_seconds > 0 ? result.stage_seconds[stage] / result.makespan_seconds : 0;
    const std::int64_t peak_bytes = stage < result.memory.size() ? result.memory[stage].peak_bytes : 0;
    rows.push_back({fmt::format("{}", stage),
                    end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1),
                    fmt::format("{}", num_parameters), format_percent(busy), cli::format_bytes(peak_bytes)});
    first = end;
  }
  return cli::to_table({"stage", "<layers", "parameters", "busy", "peak"}, rows);
}

bool recomputes(const MeasuredSteps& steps) {
  return std::any_of(steps.stages().begin(), steps.stages().end(), [](const StageTimes& stage) {
    return stage[static_cast<std::size_t>(ActionKind::kRecompute)].count > 0;
  });
}

// The name of the schedule that ran. Empty if that alone does not say what its stages did.
std::string named_schedule(const TrainingResult& result, const Pipeline& pipeline, const RunOptions& options) {
  const auto& plan = options.trainer.plan;
  const bool is_named = options.schedule != kSearchedSchedule && !(plan && plan->order);
  const bool recomputes_alike = pipeline->recompute_by_stage().empty() && pipeline->rematerialization().empty() &&
                                (pipeline->options().recompute() != Recompute::kAuto || !recomputes(result.measured));
  return is_named && recomputes_alike ? pipeline->options().schedule() : "";
}

// That this process may use.
int num_cores() {
  cpu_set_t cores;
  const bool is_known = sched_getaffinity(0, sizeof cores, &cores) == 0;  // not if there are more than the set can have
  return std::max(1, is_known ? CPU_COUNT(&cores) : static_cast<int>(std::thread::hardware_concurrency()));
}

TrainedRun trained_run(const TrainingResult& result, const Pipeline& pipeline, const RunOptions& options) {
  const PipelineOptions& made_of = pipeline->options();
  const World& world = pipeline->world();
  const auto bounded = [](std::int64_t count) {
    return static_cast<int>(std::min<std::int64_t>(count, kMostMicroBatches));
  };
  TrainedRun run;
  run.steps = result.measured;
  run.num_workers = result.num_workers;
  run.layers_per_stage = pipeline->layers_per_stage();
  run.profile = pipeline->profile();
  run.schedule = named_schedule(result, pipeline, options);
  run.recompute = made_of.recompute() == Recompute::kAuto ? Recompute::kNever : made_of.recompute();
  run.has_chunks = options.chunks != 0;
  run.has_balance = !options.balance.empty();
  run.has_plan = options.trainer.plan.has_value();
  run.has_memory_limit = options.memory_limit_bytes != 0;
  run.is_launched = world.size > 1;
  run.chooses_recompute = made_of.recompute() == Recompute::kAuto;
  run.most_micro_batches = bounded(options.batches.most_micro_batches);
  run.num_rows = static_cast<int>(options.batches.num_rows);
  run.size_option = options.batches.size_option;
  run.preparing_option = options.batches.preparing_option;
  run.num_cores = num_cores();
  run.num_local_workers = world.size > 1 ? world.local_size : result.num_workers;
  run.threads_per_stage = made_of.threads_per_stage();
  return run;
}

// "2 stages", or "2 workers with 4 stages" if these are not the same.
std::string size_text(const PipelineOptions& options) {
  const int num_workers = options.num_stages();
  const std::string workers = fmt::format("{} worker{}", num_workers, num_workers == 1 ? "" : "s");
  int num_stages = num_workers;
  if (options.custom_schedule()) {
    num_stages = options.custom_schedule()->num_stages;
  } else if (options.schedule() == kSearchedSchedule) {
    return workers;  // the first step finds how many stages they have
  } else {
    const int chunks = options.chunks_per_worker();
    num_stages *= chunks > 0 ? chunks : find_schedule(options.schedule()).default_chunks;
  }
  return num_stages == num_workers ? fmt::format("{} stages", num_stages)
                                   : fmt::format("{} with {} stages", workers, num_stages);
}

// The actions that ran, in their order.
Schedule schedule_of_run(const Timeline& timeline) {
  Schedule schedule;
  schedule.name = timeline.name;
  schedule.num_stages = timeline.num_stages;
  schedule.num_micro_batches = timeline.num_micro_batches;
  schedule.worker_of_stage.resize(timeline.num_stages);
  schedule.workers.resize(timeline.workers.size());
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    for (const Span& span : timeline.workers[worker].spans) {
      schedule.worker_of_stage[span.action.stage] = worker;
      schedule.workers[worker].push_back(span.action);
    }
  }
  return schedule;
}

// Which stages a worker has: ", one a worker" or " (worker 0: 0 3; 1: 1 2)".
std::string placement_text(const Schedule& schedule) {
  if (schedule.num_stages == schedule.num_workers()) return ", one a worker";
  std::vector<std::vector<int>> stages(schedule.workers.size());
  for (int stage = 0; stage < schedule.num_stages; ++stage) stages[schedule.worker_of_stage[stage]].push_back(stage);
  std::string text;
  for (std::size_t worker = 0; worker < stages.size(); ++worker) {
    text += fmt::format("{}{}: {}", worker == 0 ? " (worker " : "; ", worker, fmt::join(stages[worker], " "));
  }
  return text + ")";
}

// "4 stages (worker 0: 0 3; 1: 1 2), simulated bubble 3.1 %, activations of at most 3.5 micro-batches"
std::string found_by_search(const Timeline& timeline, const Pipeline& pipeline) {
  const Schedule schedule = schedule_of_run(timeline);
  const Costs costs = stage_costs(pipeline->profile(), pipeline->layers_per_stage(), {}, /*optimizer_slots=*/0);
  const std::vector<double> peaks = peak_activations_by_worker(schedule);
  return fmt::format("{} stages{}, simulated bubble {}, activations of at most {:.3g} micro-batches",
                     schedule.num_stages, placement_text(schedule),
                     format_percent(simulate(schedule, costs).bubble_fraction),
                     *std::max_element(peaks.begin(), peaks.end()));
}

}  // namespace

std::string describe_start(const Pipeline& pipeline, const Task& task) {
  const PipelineOptions& options = pipeline->options();
  const auto metadata = task.metadata();
  const std::string model =
      fmt::format("{}: {} layers, {:.2f} million parameters", cli::printable(metadata.at("gpipe.model")),
                  pipeline->num_layers(), static_cast<double>(num_parameters(task.chain())) / 1e6);
  const std::string split = fmt::format("{}, {} micro-batches, {}, {} batches an epoch", size_text(options),
                                        options.num_micro_batches(), options.schedule(), task.num_batches());
  std::string lines;
  for (const std::string& line : {model, split}) {
    lines += cli::wrapped(line, kHeaderWidth - kHeaderIndent, kHeaderIndent) + "\n";
  }
  return lines;
}

std::string describe_end(const TrainingResult& result, const Pipeline& pipeline, const Task& task,
                         const TrainerOptions& options) {
  const std::int64_t steps = result.num_steps - result.first_step;
  const auto num_steps = static_cast<double>(steps);
  const auto num_items = static_cast<double>(result.num_items);
  Facts facts = {
      {"ended", ending_text(result, options)},
      {"steps", with_rate(fmt::format("{} in {}", steps, format_duration(result.seconds)), num_steps, result.seconds)}};
  if (steps > 0) {
    facts.emplace_back(task.unit(), with_rate(fmt::format("{:.0f}", num_items), num_items, result.seconds));
    facts.emplace_back("loss", fmt::format("{:.4f}", result.last_loss));
  }
  if (steps > 0 && options.plan) {
    const double predicted = options.plan->predicted_step_seconds;
    const double measured = result.makespan_seconds / num_steps;
    facts.emplace_back("planned step", fmt::format("{:.4g} s predicted, {:.4g} s measured, ratio {:.2f}", predicted,
                                                   measured, predicted / measured));
  }
  for (const Measure& measure : result.measures) facts.emplace_back(measure.name, measure.text);
  const PipelineOptions& made_of = pipeline->options();
  if (steps > 0 && made_of.schedule() == kSearchedSchedule && !made_of.custom_schedule()) {
    facts.emplace_back("search found", found_by_search(result.last_timeline, pipeline));
  }
  if (steps > 0) facts.emplace_back("bubble", format_percent(bubble_fraction(result)));
  if (!result.checkpoint.empty()) facts.emplace_back("checkpoint", result.checkpoint);
  if (!options.save_path.empty() && result.num_steps > 0) facts.emplace_back("weights", options.save_path);
  if (steps == 0) return "\n" + to_text(facts);
  for (const auto& [name, path] :
       {std::make_pair("trace", options.trace_path), std::make_pair("metrics", options.metrics_path),
        std::make_pair("events", options.tensorboard_dir)}) {
    if (!path.empty()) facts.emplace_back(name, path);
  }
  const std::string plan = options.plan ? "\n" + compared_with(*options.plan, result) : "";
  return "\n" + time_table(result) + plan + "\n" + to_text(facts) + "\n" + stage_table(result, pipeline, task.chain());
}

std::string describe_advice(const TrainingResult& result, const Pipeline& pipeline, const RunOptions& options) {
  if (result.ending == Ending::kNotFinite) return "";  // there is something else to do first
  std::string lines;
  for (const std::string& sentence : advice(trained_run(result, pipeline, options))) {
    lines += cli::wrapped(sentence, cli::output_width() - kHeaderIndent, kHeaderIndent) + "\n";
  }
  return lines.empty() ? "" : "\n" + lines;
}

}  // namespace gpipe::train
