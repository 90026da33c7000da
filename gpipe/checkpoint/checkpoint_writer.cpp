#include "gpipe/checkpoint/checkpoint_writer.h"

#include <torch/torch.h>

#include <chrono>
#include <set>
#include <utility>

namespace gpipe {

CheckpointWriter::CheckpointWriter(std::string folder, const SaveOptions& options)
    : folder_(std::move(folder)), options_(options), thread_([this] { run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_until_idle(lock);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !work_; });
}

double CheckpointWriter::save(const Pipeline& pipeline, torch::optim::Optimizer& optimizer,
                              const TrainingState& state) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait_until_idle(lock);
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  // The thread is idle: the copies are this one's.
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
  const double pause = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(snapshot);
    saved_.reset();
    pause_seconds_ = pause;
  }
  changed_.notify_all();
  return pause;
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
