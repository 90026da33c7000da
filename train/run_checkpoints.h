// The checkpoints of a training: what goes into them, and what a resumed training takes over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/batches.h"
#include "gpipe/gpipe.h"
#include "train/learning_rate.h"
#include "train/task.h"
#include "train/trainer.h"

namespace gpipe::train {

class RunCheckpoints {
 public:
  // REQUIRES: there is a checkpoint_dir; all outlive this.
  RunCheckpoints(const TrainerOptions& options, const Task& task, const LearningRate& learning_rate);

  // Takes the folder for this training, before it is looked at or changed. All ranks call it. Throws CheckpointError if
  // another training has it.
  void lock(const Pipeline& pipeline);

  struct Resumed {
    std::string path;
    std::int64_t step = 0;
    data::Position position;
    std::string notes;  // for the user, a line each
  };
  // From the latest checkpoint that is not damaged; nothing if there is none. All ranks call it, as the others. Throws
  // CheckpointError if it is of another training.
  std::optional<Resumed> resume(Pipeline& pipeline, torch::optim::Optimizer& optimizer) const;

  // With --force, of a training that begins: a restart would go on from them. To be called when nothing of it can be
  // refused any more.
  void remove_earlier() const;

  // Begins to save. Throws what was wrong with the save before.
  void save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer, std::int64_t step,
            const data::Position& position);
  // After every step: see CheckpointWriter::poll.
  void poll() { writer_.poll(); }
  // When the last one is written. Throws what was wrong with it.
  void finish();

  // Of the last that was begun; -1 if none was.
  std::int64_t last_step() const { return last_step_; }

 private:
  const TrainerOptions& options_;
  const Task& task_;
  const LearningRate& learning_rate_;
  const std::map<std::string, std::string> notes_;  // by which a checkpoint is known to be of these data
  CheckpointWriter writer_;
  std::int64_t last_step_ = -1;
};

}  // namespace gpipe::train
