#include <algorithm>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/placement.h"

namespace gpipe::schedules {
namespace {

// A worker goes through its chunks in rounds: K micro-batches on its first chunk, the same K on its second, …; then the
// next K micro-batches. The backward goes through the chunks in reverse.
struct Turn {
  int chunk;
  int micro_batch;
};

Turn turn(int index, int num_workers, int chunks) {
  const int round = index / (num_workers * chunks);
  return {index / num_workers % chunks, round * num_workers + index % num_workers};
}

}  // namespace

Schedule interleaved(int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = loop_schedule("interleaved", num_workers, num_micro_batches, chunks);
  if (chunks == 1) {
    schedule.workers = one_f_one_b(num_workers, num_micro_batches).workers;
    return schedule;
  }
  // Made for whole rounds, then cut to the micro-batches there are.
  const int rounds = (num_micro_batches - 1) / num_workers + 1;
  schedule = loop_schedule("interleaved", num_workers, rounds * num_workers, chunks);
  const int num_turns = rounds * num_workers * chunks;
  for (int worker = 0; worker < num_workers; ++worker) {
    auto& actions = schedule.workers[worker];
    const auto add_forward = [&](int index) {
      const Turn t = turn(index, num_workers, chunks);
      actions.push_back({ActionKind::kForward, t.chunk * num_workers + worker, t.micro_batch});
    };
    const auto add_backward = [&](int index) {
      const Turn t = turn(index, num_workers, chunks);
      actions.push_back({ActionKind::kBackward, (chunks - 1 - t.chunk) * num_workers + worker, t.micro_batch});
    };
    // The first gradient is back after the chunks before the last one and a return trip to the last worker.
    const int warm_up = std::min(num_turns, (chunks - 1) * num_workers + 2 * (num_workers - 1 - worker));
    for (int index = 0; index < warm_up; ++index) add_forward(index);
    for (int index = 0; index < num_turns; ++index) {
      if (warm_up + index < num_turns) add_forward(warm_up + index);
      add_backward(index);
    }
  }
  return first_micro_batches(std::move(schedule), num_micro_batches);
}

}  // namespace gpipe::schedules
