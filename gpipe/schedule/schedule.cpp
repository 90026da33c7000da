#include "gpipe/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"

namespace gpipe {

std::int64_t Schedule::num_actions() const {
  std::int64_t count = 0;
  for (const auto& actions : workers) count += static_cast<std::int64_t>(actions.size());
  return count;
}

bool Schedule::splits_backward() const {
  for (const auto& actions : workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kInputGrad) return true;
    }
  }
  return false;
}

bool Schedule::has_backward() const {
  for (const auto& actions : workers) {
    for (const Action& action : actions) {
      if (action.kind != ActionKind::kForward) return true;
    }
  }
  return false;
}

bool operator==(const Schedule& a, const Schedule& b) {
  return a.num_stages == b.num_stages && a.num_micro_batches == b.num_micro_batches &&
         a.worker_of_stage == b.worker_of_stage && a.workers == b.workers;
}

bool operator!=(const Schedule& a, const Schedule& b) { return !(a == b); }

Schedule schedule_from_actions(std::vector<std::vector<Action>> workers, std::string name) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.workers = std::move(workers);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    for (const Action& action : schedule.workers[worker]) {
      if (action.stage < 0 || action.stage >= kMaxStages || action.micro_batch < 0 ||
          action.micro_batch == std::numeric_limits<std::int32_t>::max()) {
        throw InvalidArgument(
            fmt::format("worker {} has an action of stage {} and micro-batch {}; both count from 0, and "
                        "stages end at {}",
                        worker, action.stage, action.micro_batch, kMaxStages - 1));
      }
      schedule.num_stages = std::max(schedule.num_stages, action.stage + 1);
      schedule.num_micro_batches = std::max(schedule.num_micro_batches, action.micro_batch + 1);
    }
  }
  schedule.worker_of_stage.assign(schedule.num_stages, -1);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    for (const Action& action : schedule.workers[worker]) {
      int& owner = schedule.worker_of_stage[action.stage];
      if (owner < 0) owner = worker;
    }
  }
  return schedule;
}

}  // namespace gpipe
