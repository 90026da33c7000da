// GPipe, looped BFS and forwards only: all micro-batches go through one chunk before the next.
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/parts.h"

namespace gpipe::schedules {
namespace {

// One pass over all chunks of every worker: forwards from the first chunk to the last, backwards the other way.
void add_pass(Schedule& schedule, ActionKind kind, BackwardOrder order = BackwardOrder::kAscending) {
  const int num_workers = schedule.num_workers();
  const int chunks = schedule.num_stages / num_workers;
  for (int worker = 0; worker < num_workers; ++worker) {
    for (int turn = 0; turn < chunks; ++turn) {
      const int chunk = kind == ActionKind::kForward ? turn : chunks - 1 - turn;
      for (int m = 0; m < schedule.num_micro_batches; ++m) {
        const int micro_batch = order == BackwardOrder::kAscending ? m : schedule.num_micro_batches - 1 - m;
        schedule.workers[worker].push_back({kind, chunk * num_workers + worker, micro_batch});
      }
    }
  }
}

}  // namespace

Schedule forward_only(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("forward", num_workers, num_micro_batches, 1);
  add_pass(schedule, ActionKind::kForward);
  return schedule;
}

Schedule gpipe(int num_workers, int num_micro_batches, BackwardOrder order) {
  Schedule schedule = loop_schedule("gpipe", num_workers, num_micro_batches, 1);
  add_pass(schedule, ActionKind::kForward);
  add_pass(schedule, ActionKind::kBackward, order);
  return schedule;
}

Schedule looped_bfs(int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = loop_schedule("looped-bfs", num_workers, num_micro_batches, chunks);
  add_pass(schedule, ActionKind::kForward);
  add_pass(schedule, ActionKind::kBackward);
  return schedule;
}

}  // namespace gpipe::schedules
