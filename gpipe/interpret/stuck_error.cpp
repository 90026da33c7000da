#include "gpipe/interpret/stuck_error.h"

#include <fmt/format.h>

#include <utility>

namespace gpipe {
namespace {

std::string describe(const StuckWorker& worker) {
  const std::string action = worker.action ? to_string(*worker.action) : "the end of the step";
  switch (worker.activity) {
    case WorkerActivity::kWork:
      return fmt::format("is in {}{}{}", action, worker.where.empty() ? "" : ", ", worker.where);
    case WorkerActivity::kTake:
      return fmt::format("waits for {}, to run {}", to_string(*worker.flow), action);
    case WorkerActivity::kPut:
      return fmt::format("waits for room in {}, after {}", to_string(*worker.flow), action);
    case WorkerActivity::kDone:
      break;
  }
  return "has nothing to do";
}

std::string describe(double seconds, const std::vector<StuckWorker>& workers) {
  std::string text = fmt::format("no worker got on for {} s, so the step was given up:", seconds);
  for (const StuckWorker& worker : workers) text += fmt::format("\n  worker {} {}", worker.worker, describe(worker));
  return text;
}

}  // namespace

StuckError::StuckError(double seconds, std::vector<StuckWorker> workers)
    : Error(describe(seconds, workers)), workers_(std::move(workers)) {}

}  // namespace gpipe
