// Checkpoints: everything a training needs to go on exactly where it was, on any number of stages.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint_files/checkpoint_folder.h"
#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/os/file_system.h"

namespace gpipe {

// What the caller knows of a training, besides the pipeline and the optimizer.
struct TrainingState {
  std::int64_t step = 0;      // optimizer steps that were taken
  std::string data_position;  // where the data go on, in a form of the caller's own
  std::string learning_rate;  // the schedule's state, the same; or a scheduler's, see save_scheduler
  std::map<std::string, std::string> notes;
  // What other programs are to know of the model: goes into the model's files.
  std::map<std::string, std::string> metadata;
  NamedTensors added;  // tensors besides the weights; their names begin with "gpipe."

  // These are load_checkpoint's; save_checkpoint does not look at them.
  std::vector<double> learning_rates;  // of the optimizer's groups, when it was saved
  // What may go on otherwise than the training that was saved would have; a line each.
  std::vector<std::string> warnings;
};

struct SaveOptions {
  Retention retention;
  int num_threads = 0;          // that write shards; 0: as many as there are cores
  FileSystem* files = nullptr;  // null: the real one
  FileSystem& file_system() const { return files != nullptr ? *files : real_file_system(); }
};

struct SavedCheckpoint {
  std::string path;
  std::int64_t bytes = 0;
  double pause_seconds = 0;              // in which the caller could not go on
  double write_seconds = 0;              // until it was on the disk
  std::vector<std::string> not_removed;  // older checkpoints that were to go, but could not be removed
  std::string not_locked;  // why the folder could not be locked, as on a file system without locks; else empty
};

// Saves the training in a folder of its own below `folder`, which is created if need be: see Note [A checkpoint appears
// at once]. To be called between an optimizer step and the next zero_grad: gradients are not saved. Throws
// CheckpointError if it cannot be written, or if another process saves in the folder; then all earlier checkpoints are
// there, and the training can go on. Throws InvalidArgument for optimizers other than SGD, Adam, AdamW, RMSprop and
// Adagrad.
//
// All ranks of a pipeline over processes call it, with the same state, and throw together: see Note [A checkpoint of
// several ranks].
SavedCheckpoint save_checkpoint(const std::string& folder, const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                const TrainingState& state, const SaveOptions& options = {});

struct LoadOptions {
  // Reads every file once more, to compare it with its hash.
  bool check_hashes = true;
  // Goes on with other random numbers than the training that was saved would have drawn.
  bool any_seed = false;
};

// The manifest of a checkpoint whose files all have their hashes: to find out which of several is whole before one of
// them is loaded, with LoadOptions::check_hashes off. All ranks call it; each checks its share, and all throw
// CheckpointError together.
Manifest read_checked_manifest(const Pipeline& pipeline, const std::string& checkpoint);

// Puts weights, buffers, the optimizer's options and state, and Pipeline::step as they were when the checkpoint was
// saved; the pipeline may have another number of stages, schedule or recompute. `path` is a checkpoint, or a folder of
// them: then the latest. Throws CheckpointError, before anything is changed, for a checkpoint that is damaged, or of
// another model, optimizer or seed. Warns, see TrainingState::warnings, if the learning rate was changed by something
// that is not in the checkpoint. All ranks call it, and throw together; each gets what it runs.
TrainingState load_checkpoint(const std::string& path, Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const LoadOptions& options = {});

// The same for a module without a pipeline, such as a plain torch::nn::Sequential, and its optimizer: what one of them
// has saved resumes on the other. Its layers draw torch's random numbers, which are not saved; for a pipeline, it
// counts as one with the seed 0, in which a step was taken for each of `state.step`. Throws InvalidArgument for a
// PipelineImpl.
SavedCheckpoint save_checkpoint(const std::string& folder, const torch::nn::Module& module,
                                torch::optim::Optimizer& optimizer, const TrainingState& state,
                                const SaveOptions& options = {});
TrainingState load_checkpoint(const std::string& path, torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                              const LoadOptions& options = {});

// What one stage puts into a checkpoint.
struct StageShard {
  int stage = 0;
  NamedTensors weights;
  NamedTensors slots;  // see OptimizerState
};

// A checkpoint before it is written. Its tensors are those of the training unless they are copied.
struct CheckpointSnapshot {
  Manifest manifest;               // without files
  std::vector<StageShard> shards;  // of the stages that are saved by this rank
  int num_stages = 1;              // of all
  std::map<std::string, std::string> metadata;
};
// Makes that of this rank.
CheckpointSnapshot snapshot_of(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                               const TrainingState& state);
// Writes a snapshot as save_checkpoint does. REQUIRES: it holds all stages.
SavedCheckpoint write_snapshot(const std::string& folder, const CheckpointSnapshot& snapshot,
                               const SaveOptions& options);

}  // namespace gpipe
