// Checkpoints that are written while the training goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "gpipe/checkpoint/checkpoint.h"

namespace gpipe {

class FileLock;
class RankSave;

// Copies the training's tensors, and writes the copy in a thread of its own. There is one copy: the next save waits
// until the one before is written, and uses its memory again. From lock() or its first save on, it holds the folder: another
// process that saves there gets an error.
//
// Over processes, each rank writes its own copy, all ranks make the same calls, and the checkpoint exists once a call
// has seen that all have written: a poll between two steps, or the next save or wait. Thread-compatible.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string folder, const SaveOptions& options = {});
  // Waits until the last one is written. An error of it is lost: call wait() to see it. While an exception is on its
  // way, the other ranks may be gone: then the last one is given up if it needs them.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Takes the folder now, before its first save: for who looks at what is in it or changes it. Returns why that could not
  // be done, as on a file system without locks; else nothing. A folder that was made for it, and in which nothing was
  // saved, goes at the end. All ranks call it. Throws CheckpointError if another process holds the folder.
  std::string lock(const Pipeline& pipeline);

  // Returns how long the caller was held up: by the save before, if it was not written yet, and by the copy. Throws
  // what went wrong with the save before; then this one is not begun, and the next may be tried. See save_checkpoint.
  double save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer, const TrainingState& state);

  // Until the last one is written, and throws if that went wrong. What was saved last, with the pause of its save;
  // nothing if nothing was saved since the last call.
  std::optional<SavedCheckpoint> wait();

  // Whether everything is written. Over processes, puts the checkpoint in place if all ranks have written their part.
  // Cheap: for every step. Throws what went wrong.
  bool poll();

  // Of the copies that are kept.
  std::int64_t copy_bytes() const;

 private:
  void run();
  CheckpointSnapshot copied_snapshot(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                     const TrainingState& state);
  void copy_tensors(NamedTensors& tensors, const char* kind);
  void finish_ranks();
  void remove_unused_folder();
  void wait_until_idle(std::unique_lock<std::mutex>& lock);

  std::shared_ptr<const FileLock> lock_;  // of the folder, on the rank that puts checkpoints in place; the last to go
  const std::string folder_;
  const SaveOptions options_;
  FileSystem& files_;
  bool is_folder_unused_ = false;             // made by lock(), and nothing was saved there
  std::map<std::string, at::Tensor> copies_;  // by kind and name
  std::unique_ptr<RankSave> rank_save_;       // if there are other ranks: instead of the thread's work
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointSnapshot> work_;  // what the thread is to write, or is writing
  std::optional<SavedCheckpoint> saved_;
  std::exception_ptr error_;
  double pause_seconds_ = 0;
  std::chrono::steady_clock::time_point begun_;
  bool is_ending_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace gpipe
