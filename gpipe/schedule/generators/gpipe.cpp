#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"

namespace gpipe::schedules {

Schedule gpipe(int num_workers, int num_micro_batches, BackwardOrder order) {
  Schedule schedule = loop_schedule("gpipe", num_workers, num_micro_batches, 1);
  for (int stage = 0; stage < num_workers; ++stage) {
    auto& actions = schedule.workers[stage];
    for (int m = 0; m < num_micro_batches; ++m) actions.push_back({ActionKind::kForward, stage, m});
    for (int m = 0; m < num_micro_batches; ++m) {
      const int micro_batch = order == BackwardOrder::kAscending ? m : num_micro_batches - 1 - m;
      actions.push_back({ActionKind::kBackward, stage, micro_batch});
    }
  }
  return schedule;
}

}  // namespace gpipe::schedules
