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

Turn turn(std::int64_t index, int num_workers, int chunks) {
  const std::int64_t round = index / (std::int64_t{num_workers} * chunks);
  return {static_cast<int>(index / num_workers % chunks), static_cast<int>(round * num_workers + index % num_workers)};
}

}  // namespace

Schedule interleaved(int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = loop_schedule("interleaved", num_workers, num_micro_batches, chunks);
  if (chunks == 1) {
    schedule.workers = one_f_one_b(num_workers, num_micro_batches).workers;
    return schedule;
  }
  // Laid out for whole rounds of K micro-batches; of the last round, only the turns that there are.
  const int rounds = (num_micro_batches - 1) / num_workers + 1;
  const std::int64_t num_turns = std::int64_t{rounds} * num_workers * chunks;
  std::vector<std::int64_t> turns;
  for (std::int64_t first = 0; first < num_turns; first += num_workers) {
    const int micro_batch = turn(first, num_workers, chunks).micro_batch;
    for (int m = micro_batch; m < std::min(micro_batch + num_workers, num_micro_batches); ++m)
      turns.push_back(first + m - micro_batch);
  }
  for (int worker = 0; worker < num_workers; ++worker) {
    auto& actions = schedule.workers[worker];
    actions.reserve(2 * turns.size());
    // The first gradient is back after the chunks before the last one and a return trip to the last worker.
    const std::int64_t warm_up = std::int64_t{chunks - 1} * num_workers + std::int64_t{2} * (num_workers - 1 - worker);
    std::size_t forward = 0;
    for (const std::int64_t backward : turns) {
      for (; forward < turns.size() && turns[forward] <= warm_up + backward; ++forward) {
        const Turn t = turn(turns[forward], num_workers, chunks);
        actions.push_back({ActionKind::kForward, t.chunk * num_workers + worker, t.micro_batch});
      }
      const Turn t = turn(backward, num_workers, chunks);
      actions.push_back({ActionKind::kBackward, (chunks - 1 - t.chunk) * num_workers + worker, t.micro_batch});
    }
  }
  return schedule;
}

}  // namespace gpipe::schedules
