// Watchdog: notices a step in which no worker gets on, and says what each of them waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "gpipe/interpret/stuck_error.h"

namespace gpipe::detail {

// What a worker does at this moment. Written by its worker, read by any thread.
class WorkerState {
 public:
  void begin(int position) { store(position, WorkerActivity::kWork); }
  void wait_for(int flow, WorkerActivity activity) { store(position_, activity, flow); }
  void work() { store(position_, WorkerActivity::kWork); }
  void end() { store(-1, WorkerActivity::kDone); }
  void store(int position, WorkerActivity activity, int flow = -1) {
    position_ = position;
    const auto high = static_cast<std::uint64_t>(static_cast<std::uint32_t>(position)) << 32U;
    packed_.store(high | static_cast<std::uint32_t>(flow + 1) << 2U | static_cast<std::uint32_t>(activity),
                  std::memory_order_relaxed);
  }

  // Position among the worker's actions (-1: none), what it does, flow (-1: none).
  std::tuple<int, WorkerActivity, int> load() const {
    const std::uint64_t packed = this->packed();
    return {static_cast<int>(static_cast<std::uint32_t>(packed >> 32U)), static_cast<WorkerActivity>(packed & 3U),
            static_cast<int>((packed & 0xffffffffU) >> 2U) - 1};
  }
  std::uint64_t packed() const { return packed_.load(std::memory_order_relaxed); }

 private:
  int position_ = -1;  // its worker's own copy
  std::atomic<std::uint64_t> packed_{static_cast<std::uint64_t>(WorkerActivity::kDone)};
};

struct WatchdogOptions {
  double seconds = 0;  // without any worker beginning or ending anything; 0 = no watchdog
  // Called at once. The error itself reaches the caller when the last layer at work has returned: a thread that is
  // inside one cannot be stopped.
  std::function<void(const StuckError&)> on_stuck;
};

// Watches the workers of one step from the caller's thread.
class Watchdog {
 public:
  Watchdog(double seconds, const std::vector<std::unique_ptr<WorkerState>>& workers);

  // To be called every now and then: whether none of them has changed for that long.
  bool is_stuck();

 private:
  using Clock = std::chrono::steady_clock;
  bool changed();

  const double seconds_;
  const std::vector<std::unique_ptr<WorkerState>>& workers_;
  std::vector<std::uint64_t> seen_;
  Clock::time_point since_ = Clock::now();
};

}  // namespace gpipe::detail
