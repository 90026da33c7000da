// 1F1B; ZB-H1 and ZB-H2: its order with B split into I and W, and W filled in; interleaved: 1F1B over several chunks.
#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/parts.h"

namespace gpipe::schedules {
namespace {

// `warm_up(stage)` forwards, then one `backward` and one F in turn.
template <typename WarmUp>
void alternate(Schedule& schedule, ActionKind backward, const WarmUp& warm_up) {
  const int num_micro_batches = schedule.num_micro_batches;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    auto& actions = schedule.workers[stage];
    int forward = 0;
    for (; forward < std::min(num_micro_batches, warm_up(stage)); ++forward) {
      actions.push_back({ActionKind::kForward, stage, forward});
    }
    for (int micro_batch = 0; micro_batch < num_micro_batches; ++micro_batch) {
      actions.push_back({backward, stage, micro_batch});
      if (forward < num_micro_batches) actions.push_back({ActionKind::kForward, stage, forward++});
    }
  }
}

void fill(Schedule& schedule, int max_live) {
  if (!fill_weight_grads(schedule, max_live))
    throw Error(schedule.name + ": the order does not fit its memory; a defect");
}

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

Schedule one_f_one_b(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("1f1b", num_workers, num_micro_batches, 1);
  alternate(schedule, ActionKind::kBackward, [&](int stage) { return num_workers - stage; });
  return schedule;
}

Schedule zb_h1(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("zb-h1", num_workers, num_micro_batches, 1);
  alternate(schedule, ActionKind::kInputGrad, [&](int stage) { return num_workers - stage; });
  fill(schedule, num_workers);
  return schedule;
}

Schedule zb_h2(int num_workers, int num_micro_batches) {
  Schedule schedule = loop_schedule("zb-h2", num_workers, num_micro_batches, 1);
  alternate(schedule, ActionKind::kInputGrad, [&](int stage) { return 2 * (num_workers - stage) - 1; });
  fill(schedule, 2 * num_workers - 1);
  return schedule;
}

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
