// The training loop: batches, steps, progress, evaluation, weights. Knows tasks only by their interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "train/learning_rate.h"
#include "train/measured_steps.h"
#include "train/optimizer.h"
#include "train/task.h"

namespace gpipe::train {

// What operations run in, if they allow it.
enum class Precision { kFloat32, kBf16 };
// "float32", "bf16"
const char* name(Precision precision);

struct TrainerOptions {
  std::int64_t num_epochs = 1;
  std::int64_t num_steps = 0;  // if not 0: instead of the epochs
  LearningRate learning_rate;  // its total_steps are filled in
  // Given by the user; else that of learning_rate, or a tenth of the steps if that is less.
  std::optional<std::int64_t> warmup_steps;
  OptimizerOptions optimizer;
  double clip_norm = 0;  // 0: gradients are not clipped
  Precision precision = Precision::kFloat32;
  std::string weights_path;  // to begin with; empty: fresh ones
  std::string save_path;     // empty: weights are not kept
  std::string trace_path;    // of the last step
  std::string metrics_path;
  std::string tensorboard_dir;
  std::string checkpoint_dir;         // empty: no checkpoints
  std::int64_t checkpoint_every = 0;  // steps; 0: only at the end, and when it is interrupted
  Retention retention;                // of checkpoints
  bool resume = false;                // from the latest checkpoint, if there is one
  bool force = false;                 // existing files may be replaced
  std::optional<Plan> plan;           // that is run; what it predicts is told at the end beside what was measured
};

enum class Ending {
  kDone,
  kInterrupted,  // by Ctrl-C
  kPreempted,    // by SIGTERM
  kNotFinite,    // the loss or the gradient was not: weights and buffers are those of the step before
};

// What a run came to. Seconds are summed over the steps.
struct TrainingResult {
  Ending ending = Ending::kDone;
  std::int64_t first_step = 0;  // that a checkpoint was resumed from
  std::int64_t num_steps = 0;   // with those
  std::int64_t num_items = 0;   // without those
  double last_loss = 0;
  double seconds = 0;                 // of training, without evaluation
  double step_seconds = 0;            // forward and backward
  double update_seconds = 0;          // optimizer
  double data_seconds = 0;            // waiting for batches
  double checkpoint_seconds = 0;      // held up by saving
  double useful_seconds = 0;          // of all workers
  double recompute_seconds = 0;       // of all workers
  double imbalance_seconds = 0;       // of all workers: idle because another one has more to do
  double idle_seconds = 0;            // of all workers: the rest of the steps
  double makespan_seconds = 0;        // from the first action of a step to the last
  std::vector<double> stage_seconds;  // in which a stage was at work
  int num_workers = 0;
  std::vector<StageMemory> memory;  // empty unless it was measured; peaks over all steps
  std::vector<Measure> measures;    // of the last evaluation
  Timeline last_timeline;           // of the last step
  MeasuredSteps measured;           // those steps that are alike
  std::string checkpoint;           // the last one; empty if there is none
};

// The workers' idle time, divided by workers x time, over all steps of this run: the bubble as Timeline has it for one
// step.
double bubble_fraction(const TrainingResult& result);

// Trains the pipeline's model. Reports on standard output. Throws what the pipeline and the files throw; a failing step
// leaves the weights of the step before, and they are saved if they are to be. A checkpoint that cannot be written on
// the way is reported, and the training goes on; the last one has to be written.
TrainingResult run_training(const Pipeline& pipeline, Task& task, const TrainerOptions& options);

}  // namespace gpipe::train
