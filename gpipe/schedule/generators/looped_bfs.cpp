#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"

namespace gpipe::schedules {

Schedule looped_bfs(int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = loop_schedule("looped-bfs", num_workers, num_micro_batches, chunks);
  for (int worker = 0; worker < num_workers; ++worker) {
    auto& actions = schedule.workers[worker];
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = 0; m < num_micro_batches; ++m)
        actions.push_back({ActionKind::kForward, chunk * num_workers + worker, m});
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int m = 0; m < num_micro_batches; ++m)
        actions.push_back({ActionKind::kBackward, chunk * num_workers + worker, m});
    }
  }
  return schedule;
}

}  // namespace gpipe::schedules
