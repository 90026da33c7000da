#include "gpipe/interpret/watchdog.h"

#include <utility>

namespace gpipe::detail {

Watchdog::Watchdog(double seconds, const std::vector<std::unique_ptr<WorkerState>>& workers)
    : seconds_(seconds), workers_(workers), seen_(workers.size()) {
  changed();
}

bool Watchdog::changed() {
  bool any = false;
  for (std::size_t worker = 0; worker < seen_.size(); ++worker) {
    const std::uint64_t now = workers_[worker]->packed();
    any |= std::exchange(seen_[worker], now) != now;
  }
  return any;
}

bool Watchdog::is_stuck() {
  const Clock::time_point now = Clock::now();
  if (changed()) since_ = now;
  return std::chrono::duration<double>(now - since_).count() >= seconds_;
}

}  // namespace gpipe::detail
