#include <algorithm>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"

namespace gpipe::schedules {

Schedule one_f_one_b(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("1f1b", num_workers, num_micro_batches, 1);
  for (int stage = 0; stage < num_workers; ++stage) {
    auto& actions = schedule.workers[stage];
    int forward = 0;
    for (; forward < std::min(num_micro_batches, num_workers - stage); ++forward) {
      actions.push_back({ActionKind::kForward, stage, forward});
    }
    for (int backward = 0; backward < num_micro_batches; ++backward) {
      actions.push_back({ActionKind::kBackward, stage, backward});
      if (forward < num_micro_batches) actions.push_back({ActionKind::kForward, stage, forward++});
    }
  }
  return schedule;
}

}  // namespace gpipe::schedules
