#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"

namespace gpipe::schedules {

Schedule forward_only(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("forward", num_workers, num_micro_batches, 1);
  for (int stage = 0; stage < num_workers; ++stage) {
    for (int m = 0; m < num_micro_batches; ++m) schedule.workers[stage].push_back({ActionKind::kForward, stage, m});
  }
  return schedule;
}

}  // namespace gpipe::schedules
