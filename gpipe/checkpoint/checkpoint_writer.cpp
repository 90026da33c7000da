#include "gpipe/checkpoint/checkpoint_writer.h"

#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <iterator>
#include <utility>

#include "gpipe/checkpoint/checkpoint_ranks.h"
#include "gpipe/checkpoint_files/checkpoint_lock.h"
#include "gpipe/os/input_file.h"

namespace gpipe {

using detail::is_there;

CheckpointWriter::CheckpointWriter(std::string folder, const SaveOptions& options)
    : folder_(std::move(folder)), options_(options) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    if (pending_ != nullptr && std::uncaught_exceptions() == 0 && pending_->can_finish()) finish();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) see above: wait() tells
  }
  if (is_folder_unused_ && lock_.use_count() == 1) remove_unused_folder();
}

std::string CheckpointWriter::lock(const Pipeline& pipeline) {
  detail::tell_all_ranks(*pipeline, "locking the folder of the checkpoints", [&](detail::WireRecord&) {
    if (pipeline->world().rank != 0) return;
    is_folder_unused_ = !is_there(folder_);
    lock_ = detail::lock_checkpoints(options_.file_system(), folder_);
  });
  return lock_ == nullptr ? "" : lock_->problem();
}

// Unless there is something else in it than the lock. While that is held, so that nobody else has it.
void CheckpointWriter::remove_unused_folder() {
  std::error_code error;
  const std::filesystem::directory_iterator files(folder_, error);
  if (error || std::distance(begin(files), end(files)) > 1) return;
  options_.file_system().unlink(folder_ + "/" + detail::kLockName);
  options_.file_system().rmdir(folder_);
}

void CheckpointWriter::finish() {
  if (pending_ == nullptr) return;
  const std::unique_ptr<detail::PendingSave> save = std::move(pending_);
  saved_ = save->finish();
  saved_->pause_seconds = pause_seconds_;
}

bool CheckpointWriter::poll() {
  if (pending_ != nullptr && !pending_->is_written()) return false;
  finish();
  return true;
}

double CheckpointWriter::save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const TrainingState& state) {
  const auto start = std::chrono::steady_clock::now();
  finish();
  is_folder_unused_ = false;
  saved_.reset();
  pending_ =
      detail::begin_save(pipeline, folder_, options_, [&] { return copied_snapshot(pipeline, optimizer, state); });
  lock_ = pending_->lock();
  pause_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return pause_seconds_;
}

// REQUIRES: nothing is being written: the copies are free.
CheckpointSnapshot CheckpointWriter::copied_snapshot(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                                                     const TrainingState& state) {
  CheckpointSnapshot snapshot = snapshot_of(pipeline, optimizer, state);
  std::map<std::string, at::Tensor> free = std::exchange(copies_, {});
  const auto copy_all = [&](NamedTensors& tensors, const char* kind) {
    const torch::NoGradGuard no_grad;
    for (auto& [name, tensor] : tensors) {
      at::Tensor& copy = copies_[kind + name] = std::move(free[kind + name]);
      if (!copy.defined() || copy.sizes() != tensor.sizes() || copy.scalar_type() != tensor.scalar_type()) {
        copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
      }
      tensor = copy.copy_(tensor.detach());
    }
  };
  for (StageShard& shard : snapshot.shards) {
    copy_all(shard.weights, "weight ");
    copy_all(shard.slots, "slot ");
  }
  return snapshot;
}

std::optional<SavedCheckpoint> CheckpointWriter::wait() {
  finish();
  return std::exchange(saved_, std::nullopt);
}

std::int64_t CheckpointWriter::copy_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& item : copies_) bytes += static_cast<std::int64_t>(item.second.nbytes());
  return bytes;
}

}  // namespace gpipe
