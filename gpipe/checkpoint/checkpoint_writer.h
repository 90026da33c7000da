// Checkpoints that are written while the training goes on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gpipe/checkpoint/checkpoint.h"

namespace gpipe {

namespace detail {
class FileLock;
class PendingSave;
}  // namespace detail

// Copies the training's tensors, and writes the copy in a thread of its own. There is one copy: the next save waits
// until the one before is written, and uses its memory again. From lock() or its first save on, it holds the folder:
// another process that saves there gets an error.
//
// Over processes, each rank writes its own copy, all ranks make the same calls, and the checkpoint exists once a call
// has seen that all have written: a poll between two steps, or the next save or wait. Thread-compatible.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder, const SaveOptions& options = {});
  // Waits until the last checkpoint is written. Its error is lost: call wait() to see it. While an exception is on its
  // way, the other ranks may be gone: then the last checkpoint is given up if it needs them.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Takes the folder now, before its first save: for who looks at what is in it or changes it. Returns why that could
  // not be done, as on a file system without locks; else nothing. A folder that was made for it, and in which nothing
  // was saved, goes at the end. All ranks call it. Throws CheckpointError if another process holds the folder.
  std::string lock(const Pipeline& pipeline);

  // Returns how long the caller was held up: by the save before, if it was not written yet, and by the copy. Throws
  // what went wrong with the save before; then this one is not begun, and the next may be tried. See save_checkpoint.
  double save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer, const TrainingState& state);

  // Waits until the last checkpoint is written; throws what went wrong with it. Returns what was saved last, with the
  // pause of its save; nothing if nothing was saved since the last call.
  std::optional<SavedCheckpoint> wait();

  // Whether everything is written. Over processes, puts the checkpoint in place if all ranks have written their part.
  // Cheap: for every step. Throws what went wrong.
  bool poll();

  // The bytes of the copies that are kept.
  std::int64_t copy_bytes() const;

 private:
  // Waits for the end of the last save, if that is on its way, and keeps what it has saved. Throws what went wrong.
  void finish();
  CheckpointSnapshot copied_snapshot(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                     const TrainingState& state);
  void remove_unused_folder();

  // The lock of the folder, on the rank that puts checkpoints in place; it is the last member to go.
  std::shared_ptr<const detail::FileLock> lock_;
  const std::string folder_;
  const SaveOptions options_;
  bool is_folder_unused_ = false;                 // made by lock(), and nothing was saved there
  std::map<std::string, at::Tensor> copies_;      // by kind and name
  std::unique_ptr<detail::PendingSave> pending_;  // the save that is on its way; null: none is
  std::optional<SavedCheckpoint> saved_;
  double pause_seconds_ = 0;  // of the last save
};

}  // namespace gpipe
