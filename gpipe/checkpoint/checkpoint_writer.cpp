#include "gpipe/checkpoint/checkpoint_writer.h"

#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "gpipe/checkpoint/checkpoint_ranks.h"
#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/os/paths.h"

namespace gpipe {

CheckpointWriter::CheckpointWriter(std::string folder, const SaveOptions& options)
    : folder_(std::move(folder)),
      options_(options),
      files_(options.files != nullptr ? *options.files : real_file_system()),
      thread_([this] { run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    if (rank_save_ != nullptr && std::uncaught_exceptions() == 0 && rank_save_->can_finish()) finish_ranks();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) see above: wait() tells
  }
  rank_save_.reset();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_until_idle(lock);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (is_folder_unused_ && lock_.use_count() == 1) remove_unused_folder();
}

std::string CheckpointWriter::lock(const Pipeline& pipeline) {
  const auto take = [&] {
    if (pipeline->world().rank != 0) return;
    is_folder_unused_ = !is_there(folder_);
    lock_ = lock_checkpoints(files_, folder_);
  };
  if (pipeline->world().size == 1) {
    take();
  } else {
    tell_all_ranks(*pipeline, "locking the folder of the checkpoints", [&](detail::WireRecord&) { take(); });
  }
  return lock_ == nullptr ? "" : lock_->problem();
}

// Unless there is something else in it than the lock. While that is held, so that nobody else has it.
void CheckpointWriter::remove_unused_folder() {
  std::error_code error;
  const std::filesystem::directory_iterator files(folder_, error);
  if (error || std::distance(begin(files), end(files)) > 1) return;
  files_.unlink(folder_ + "/" + kLockName);
  files_.rmdir(folder_);
}

void CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !work_; });
}

void CheckpointWriter::finish_ranks() {
  if (rank_save_ == nullptr) return;
  const std::unique_ptr<RankSave> save = std::move(rank_save_);
  saved_ = save->finish();
  saved_->pause_seconds = pause_seconds_;
  saved_->write_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

bool CheckpointWriter::poll() {
  if (rank_save_ != nullptr) {
    if (!rank_save_->is_written()) return false;
    finish_ranks();
    return true;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (work_) return false;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  return true;
}

double CheckpointWriter::save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const TrainingState& state) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_until_idle(lock);
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  finish_ranks();
  is_folder_unused_ = false;
  const auto seconds_since_start = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (pipeline->world().size > 1) {
    saved_.reset();
    rank_save_ = std::make_unique<RankSave>(pipeline, folder_, options_,
                                            [&] { return copied_snapshot(pipeline, optimizer, state); });
    lock_ = rank_save_->lock();
    begun_ = start;
    return pause_seconds_ = seconds_since_start();
  }
  lock_ = lock_checkpoints(files_, folder_);
  CheckpointSnapshot snapshot = copied_snapshot(pipeline, optimizer, state);
  const double pause = seconds_since_start();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(snapshot);
    saved_.reset();
    pause_seconds_ = pause;
  }
  changed_.notify_all();
  return pause;
}

// REQUIRES: nothing is being written: the copies are free.
CheckpointSnapshot CheckpointWriter::copied_snapshot(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                                     const TrainingState& state) {
  CheckpointSnapshot snapshot = snapshot_of(pipeline, optimizer, state);
  std::set<std::string> used;
  for (StageShard& shard : snapshot.shards) {
    copy_tensors(shard.weights, "weight ");
    copy_tensors(shard.slots, "slot ");
    for (const auto& item : shard.weights) used.insert("weight " + item.first);
    for (const auto& item : shard.slots) used.insert("slot " + item.first);
  }
  for (auto copy = copies_.begin(); copy != copies_.end();) {
    copy = used.count(copy->first) != 0 ? std::next(copy) : copies_.erase(copy);
  }
  return snapshot;
}

void CheckpointWriter::copy_tensors(NamedTensors& tensors, const char* kind) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    at::Tensor& copy = copies_[kind + name];
    if (!copy.defined() || copy.sizes() != tensor.sizes() || copy.scalar_type() != tensor.scalar_type()) {
      copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    }
    copy.copy_(tensor.detach());
    tensor = copy;
  }
}

std::optional<SavedCheckpoint> CheckpointWriter::wait() {
  finish_ranks();
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until_idle(lock);
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::exchange(saved_, std::nullopt);
}

std::int64_t CheckpointWriter::copy_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& item : copies_) bytes += static_cast<std::int64_t>(item.second.nbytes());
  return bytes;
}

void CheckpointWriter::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return work_ || is_ending_; });
    if (!work_) return;
    lock.unlock();
    std::optional<SavedCheckpoint> saved;
    std::exception_ptr error;
    try {
      saved = write_snapshot(folder_, *work_, options_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    work_.reset();
    if (saved) saved->pause_seconds = pause_seconds_;
    saved_ = std::move(saved);
    error_ = error;
    changed_.notify_all();
  }
}

}  // namespace gpipe
