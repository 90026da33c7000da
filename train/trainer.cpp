#include "train/trainer.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/files.h"
#include "cli/terminal.h"
#include "data/prefetch.h"
#include "train/agreed_options.h"
#include "train/interrupt.h"
#include "train/metrics_log.h"
#include "train/progress.h"
#include "train/run_checkpoints.h"
#include "train/tensorboard.h"

namespace gpipe::train {
namespace {

// Since 1970.
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Of the processes that train together, the first one reports and writes files.
bool reports() { return read_world().rank == 0; }

class Trainer {
 public:
  Trainer(const Pipeline& pipeline, Task& task, const TrainerOptions& options)
      : pipeline_(pipeline), task_(task), options_(options), optimizer_(make_optimizer(pipeline, options.optimizer)) {
    // So the norm of the gradients is the same on every machine, and the stages' workers take it.
    torch::set_num_threads(pipeline->options().threads_per_stage());
    num_steps_ = options_.num_steps != 0 ? options_.num_steps : options_.num_epochs * task_.num_batches();
    LearningRate& rate = options_.learning_rate;
    rate.total_steps = num_steps_;
    rate.warmup_steps = options_.warmup_steps.value_or(std::min(rate.warmup_steps, num_steps_ / 10));
    rate.check();
    if (!options_.checkpoint_dir.empty()) checkpoints_.emplace(options_, task_, rate).lock(pipeline_);
    if (!resume()) begin();
    if (!reports()) return;
    if (!options_.metrics_path.empty()) {
      if (result_.first_step > 0) {
        metrics_.emplace(MetricsLog::resume(options_.metrics_path, result_.first_step));
      } else {
        metrics_.emplace(options_.metrics_path, options_.force);
      }
    }
    if (!options_.tensorboard_dir.empty()) tensorboard_.emplace(options_.tensorboard_dir, wall_seconds());
  }

  TrainingResult run() {
    const SignalHandlers handlers = note_signals();
    try {
      take_steps();
    } catch (...) {
      progress_.clear();
      if (pipeline_->world().size == 1) save_in_spite_of_error();  // else the others may be gone
      throw;
    }
    progress_.clear();
    // Before the last evaluation, which may take long. What is wrong with one of the two does not prevent the other.
    try {
      save_last_checkpoint();
    } catch (const CheckpointError&) {
      save_in_spite_of_error();
      throw;
    }
    save();
    note_interrupt();
    if (result_.ending == Ending::kDone) {
      const SignalHandlers at_once = end_at_signals(/*termination_is_well=*/!result_.checkpoint.empty());
      progress_.print(fmt::format("step {}: evaluating", result_.num_steps));
      evaluate(/*is_last=*/true);
    }
    return std::move(result_);
  }

 private:
  static constexpr int kBatchesAhead = 4;

  // True if there is a checkpoint to go on from.
  bool resume() {
    // After a restart not all hosts' ranks need to know of it.
    if (!checkpoints_ || !any_rank(pipeline_, options_.resume)) return false;
    const auto resumed = checkpoints_->resume(pipeline_, *optimizer_);
    if (!resumed) {
      if (reports()) cli::print(fmt::format("no checkpoint in {}: from the beginning\n", options_.checkpoint_dir));
      return false;
    }
    if (reports()) {
      cli::print(fmt::format("{}resumed from {}, after step {}{}\n", resumed->notes, resumed->path, resumed->step,
                             resumed->step < num_steps_ ? "" : ": all steps were taken before; --steps adds more"));
    }
    result_.first_step = result_.num_steps = resumed->step;
    result_.checkpoint = resumed->path;
    position_ = resumed->position;
    task_.seek(position_);
    return true;
  }

  void begin() {
    const std::string& path = options_.weights_path;
    if (path.empty()) {
      agree_on(pipeline_, "no --weights");
    } else {
      // Each rank takes those of its own layers, from a file that may have another path than elsewhere.
      const Safetensors content = load_model(path);
      if (pipeline_->world().size > 1) agree_on(pipeline_, agreed_weights(content));
      load_weights(content, path, pipeline_);
    }
    if (!checkpoints_) return;
    any_rank(pipeline_, false);  // all have read the weights, which may be in a checkpoint that goes now
    checkpoints_->remove_earlier();
  }

  // Whether the ranks were asked to end.
  bool is_interrupted() { return any_rank(pipeline_, noted_signal() != 0); }

  void note_interrupt() {
    if (!is_interrupted() || result_.ending != Ending::kDone) return;
    const bool is_preempted = any_rank(pipeline_, noted_signal() == SIGTERM);
    result_.ending = is_preempted ? Ending::kPreempted : Ending::kInterrupted;
  }

  void take_steps() {
    pipeline_->train();
    std::int64_t produced = result_.first_step;
    data::Prefetch<TensorBatch> batches(
        [&]() -> std::optional<TensorBatch> {
          if (produced++ >= num_steps_) return std::nullopt;
          return task_.next_batch();
        },
        kBatchesAhead);
    while (result_.num_steps < num_steps_ && result_.ending == Ending::kDone) {
      const auto start = clock_seconds();
      const TensorBatch batch = *batches.next();
      const double data_seconds = clock_seconds() - start;
      const double updates_before = result_.update_seconds;
      if (take_step(batch)) {
        result_.measured.add(result_.last_timeline, {data_seconds, result_.update_seconds - updates_before});
        result_.data_seconds += data_seconds;
        result_.seconds += clock_seconds() - start;
        report(batch, clock_seconds() - start);
        const bool ends_epoch = result_.num_steps % task_.num_batches() == 0;
        if (ends_epoch && result_.num_steps < num_steps_) evaluate(/*is_last=*/false);
        const bool is_due = options_.checkpoint_every != 0 && result_.num_steps % options_.checkpoint_every == 0;
        if (is_due && result_.num_steps < num_steps_) {
          save_checkpoint();
        } else if (checkpoints_) {
          try_to_save("the checkpoint before", [&] { checkpoints_->poll(); });
        }
      }
      note_interrupt();
    }
  }

  // As zero_grad() of libtorch 2 does; that of libtorch 1.13 keeps tensors of zeros, which a loss with weights would
  // set aside.
  void drop_gradients() {
    for (const at::Tensor& parameter : pipeline_->parameters()) parameter.mutable_grad().reset();
  }

  // False if the loss or the gradient was not finite: then the weights are as they were.
  bool take_step(const TensorBatch& batch) {
    set_learning_rate(*optimizer_, options_.learning_rate.at(result_.num_steps));
    drop_gradients();
    const auto start = clock_seconds();
    StepResult step;
    try {
      std::optional<AutocastScope> autocast;
      if (options_.precision == Precision::kBf16) autocast.emplace(at::kCPU, at::kBFloat16);
      step = pipeline_->train_step(replica_share(batch.inputs, world_), replica_share(batch.targets, world_),
                                   task_.loss());
    } catch (const NonFiniteLossError&) {
      result_.ending = Ending::kNotFinite;
      return false;
    }
    const double step_seconds = clock_seconds() - start;
    const auto update_start = clock_seconds();
    constexpr double kUnlimited = std::numeric_limits<double>::infinity();
    const double norm = clip_grad_norm_(pipeline_, options_.clip_norm > 0 ? options_.clip_norm : kUnlimited);
    if (!std::isfinite(norm)) {
      result_.ending = Ending::kNotFinite;
      return false;
    }
    optimizer_->step();
    result_.last_loss = step.loss.item<double>();
    result_.step_seconds += step_seconds;
    result_.update_seconds += clock_seconds() - update_start;
    ++result_.num_steps;
    result_.num_items += batch.num_items;
    position_ = batch.next;
    add_timeline(step);
    return true;
  }

  void add_timeline(StepResult& step) {
    const Timeline& timeline = step.timeline;
    result_.num_workers = timeline.num_workers();
    result_.stage_seconds.resize(timeline.num_stages);
    result_.makespan_seconds += timeline.makespan_seconds;
    double busiest = 0;
    double busy = 0;
    for (const WorkerTimeline& worker : timeline.workers) {
      for (const Span& span : worker.spans) {
        result_.stage_seconds[span.action.stage] += span.end_seconds - span.start_seconds;
        (span.action.kind == ActionKind::kRecompute ? result_.recompute_seconds : result_.useful_seconds) +=
            span.end_seconds - span.start_seconds;
      }
      busy += worker.busy_seconds;
      busiest = std::max(busiest, worker.busy_seconds);
    }
    result_.imbalance_seconds += timeline.num_workers() * busiest - busy;
    result_.idle_seconds += timeline.num_workers() * (timeline.makespan_seconds - busiest);
    result_.memory.resize(step.memory.size());
    for (std::size_t stage = 0; stage < step.memory.size(); ++stage) {
      result_.memory[stage].live_bytes = step.memory[stage].live_bytes;
      result_.memory[stage].peak_bytes = std::max(result_.memory[stage].peak_bytes, step.memory[stage].peak_bytes);
    }
    result_.last_timeline = std::move(step.timeline);
  }

  void report(const TensorBatch& batch, double seconds) {
    const double learning_rate = options_.learning_rate.at(result_.num_steps - 1);
    Progress progress;
    progress.epoch = batch.position.epoch + 1;
    progress.epochs = (num_steps_ + task_.num_batches() - 1) / task_.num_batches();
    progress.step = result_.num_steps;
    progress.steps = num_steps_;
    progress.loss = result_.last_loss;
    progress.items_per_second = static_cast<double>(result_.num_items) / result_.seconds;
    progress.unit = task_.unit();
    progress.eta_seconds = result_.seconds / static_cast<double>(result_.num_steps - result_.first_step) *
                           static_cast<double>(num_steps_ - result_.num_steps);
    progress.bubble_fraction = bubble_fraction(result_);
    progress.learning_rate = learning_rate;
    for (const StageMemory& memory : result_.memory) progress.peak_bytes.push_back(memory.peak_bytes);
    progress_.update(progress, clock_seconds());
    log({{"loss", result_.last_loss},
         {"learning_rate", learning_rate},
         {"items_per_second", static_cast<double>(batch.num_items) / seconds},
         {"bubble_fraction", result_.last_timeline.bubble_fraction}},
        batch.position.epoch);
  }

  void log(const std::vector<std::pair<std::string, double>>& values, std::int64_t epoch) {
    if (metrics_) {
      nlohmann::ordered_json metrics = {{"step", result_.num_steps}, {"epoch", epoch + 1}};
      for (const auto& [name, value] : values) metrics[name] = value;
      metrics_->append(metrics);
    }
    if (tensorboard_) {
      for (const auto& [name, value] : values) tensorboard_->add_scalar(name, value, result_.num_steps, wall_seconds());
    }
  }

  void evaluate(bool is_last) {
    const torch::NoGradGuard no_grad;
    std::optional<AutocastScope> autocast;
    if (options_.precision == Precision::kBf16) autocast.emplace(at::kCPU, at::kBFloat16);
    pipeline_->eval();
    EvaluationReporter reporter(progress_);
    const auto goes_on = [&](const Evaluated& evaluated) {
      if (!is_last && is_interrupted()) return false;  // the last one ends at once
      reporter.update(evaluated, clock_seconds());
      return true;
    };
    const std::vector<Measure> measures = task_.evaluate(pipeline_, is_last, goes_on);
    progress_.clear();
    pipeline_->train();
    if (measures.empty()) return;
    result_.measures = measures;
    std::vector<std::pair<std::string, double>> values;
    std::string line = fmt::format("step {}:", result_.num_steps);
    for (const Measure& measure : result_.measures) {
      values.emplace_back(measure.name, measure.value);
      line += fmt::format(" {} {},", measure.name, measure.text);
    }
    line.pop_back();
    if (!is_last) progress_.print(line);
    log(values, (result_.num_steps - 1) / task_.num_batches());
  }

  // On the way: what goes wrong is no reason to end the training.
  template <typename Work>
  void try_to_save(const char* what, const Work& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      progress_.print(fmt::format("step {}: {} was not saved: {}", result_.num_steps, what, error.what()));
    }
  }

  void save_checkpoint() {
    const double start = clock_seconds();
    try_to_save("the checkpoint", [&] { checkpoints_->save(pipeline_, *optimizer_, result_.num_steps, position_); });
    const double seconds = clock_seconds() - start;
    result_.checkpoint_seconds += seconds;
    result_.seconds += seconds;
  }

  void save_last_checkpoint() {
    if (!checkpoints_ || result_.num_steps == result_.first_step) return;
    const bool is_saved = checkpoints_->last_step() == result_.num_steps;
    if (!is_saved && result_.ending != Ending::kNotFinite) {
      try {
        checkpoints_->finish();
      } catch (const CheckpointError& error) {
        progress_.print(fmt::format("the checkpoint before was not saved: {}", error.what()));
      }
      checkpoints_->save(pipeline_, *optimizer_, result_.num_steps, position_);
    }
    checkpoints_->finish();
    result_.checkpoint = latest_checkpoint(options_.checkpoint_dir);
  }

  void save() const {
    if (!options_.save_path.empty() && result_.num_steps > 0) {
      Safetensors content{gather_weights(pipeline_), task_.metadata()};
      for (auto& tensor : task_.added_tensors()) content.tensors.push_back(std::move(tensor));
      if (reports()) save_safetensors(options_.save_path, content);
    }
    if (!options_.trace_path.empty() && reports() && result_.num_steps > result_.first_step) {
      cli::write_output_file(options_.trace_path, to_chrome_trace(result_.last_timeline), /*force=*/true);
    }
  }

  // REQUIRES: called in a catch block. An error of its own does not take the place of the one that is being handled.
  void save_in_spite_of_error() const {
    try {
      save();
    } catch (const std::exception& error) {
      cli::tell_after_error(fmt::format("what --save and --trace ask for was not written either: {}", error.what()));
    }
  }

  Pipeline pipeline_;
  Task& task_;
  TrainerOptions options_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  const World world_ = read_world();
  std::int64_t num_steps_ = 0;
  TrainingResult result_;
  data::Position position_;  // of the next batch to train on
  std::optional<RunCheckpoints> checkpoints_;
  ProgressReporter progress_ = make_progress_reporter(STDOUT_FILENO);
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
};

}  // namespace

double bubble_fraction(const TrainingResult& result) {
  const double total = result.num_workers * result.makespan_seconds;
  return total > 0 ? (result.imbalance_seconds + result.idle_seconds) / total : 0;
}

const char* name(Precision precision) { return precision == Precision::kBf16 ? "bf16" : "float32"; }

TrainingResult run_training(const Pipeline& pipeline, Task& task, const TrainerOptions& options) {
  return Trainer(pipeline, task, options).run();
}

}  // namespace gpipe::train
