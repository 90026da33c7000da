// Hanayo: waves. A micro-batch goes down the workers and comes back up, as often as there are waves, and its gradient
// does the same.
#include <algorithm>
#include <array>
#include <queue>
#include <vector>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/parts.h"
#include "gpipe/text/require.h"

namespace gpipe::schedules {
namespace {

using detail::require;

// Note [Waves]
// ~~~~~~~~~~~~
// The order is found by list scheduling with F = 1 and B = 2: a worker that is free takes a forward and a backward in
// turn, or the one of them that is ready. Among several forwards, or backwards, it takes that of the earliest round of
// K micro-batches; then of the earliest wave, as interleaved goes through its chunks; and inside of a wave the one that
// has come further, so that the first micro-batch of a round never waits.
//
// With one wave, no order of whole backwards on these workers takes less time. The last worker starts after the K - 1
// forwards above it, has its first backward after all forwards of a micro-batch and K - 1 backwards, and ends before
// the K - 1 backwards above it.
class WaveOrder {
 public:
  explicit WaveOrder(Schedule& schedule)
      : schedule_(schedule),
        num_workers_(schedule.num_workers()),
        chunks_(schedule.num_stages / num_workers_),
        workers_(num_workers_) {
    for (std::vector<Action>& actions : schedule.workers) {
      actions.reserve(std::size_t{2} * static_cast<std::size_t>(chunks_) *
                      static_cast<std::size_t>(schedule.num_micro_batches));
    }
  }

  void run() {
    make_ready({kF, 0, 0});
    start(0);
    std::vector<Action> finished;  // at the end of a time unit
    for (; !ends_soon_.empty() || !ends_later_.empty(); finished.clear()) {
      finished.swap(ends_soon_);
      ends_soon_.swap(ends_later_);
      for (const Action& action : finished) finish(action);
      for (const Action& action : finished) {
        const int first = std::max(action.stage - 1, 0);
        const int last = std::min(action.stage + 1, schedule_.num_stages - 1);
        for (int stage = first; stage <= last; ++stage) start(schedule_.worker_of_stage[stage]);
      }
    }
  }

 private:
  struct Ready {
    Action action;
    int round;
    int turn;  // in the round

    // The top of a priority queue is its largest element.
    bool operator<(const Ready& other) const {
      return std::array{round, turn, action.micro_batch} >
             std::array{other.round, other.turn, other.action.micro_batch};
    }
  };

  struct Worker {
    std::priority_queue<Ready> forwards;
    std::priority_queue<Ready> backwards;
    bool is_busy = false;
    ActionKind last = kB;
  };

  void make_ready(const Action& action) {
    const int chunk = action.stage / num_workers_;
    const int steps = action.kind == kF ? chunk : chunks_ - 1 - chunk;
    // Of the two steps of a wave, the second comes first.
    const Ready ready{action, action.micro_batch / num_workers_, steps % 2 == 0 ? steps + 1 : steps - 1};
    Worker& worker = workers_[schedule_.worker_of_stage[action.stage]];
    (action.kind == kF ? worker.forwards : worker.backwards).push(ready);
  }

  void start(int index) {
    Worker& worker = workers_[index];
    const bool takes_backward = worker.forwards.empty() || (worker.last == kF && !worker.backwards.empty());
    std::priority_queue<Ready>& queue = takes_backward ? worker.backwards : worker.forwards;
    if (worker.is_busy || queue.empty()) return;
    const Action action = queue.top().action;
    queue.pop();
    worker.is_busy = true;
    worker.last = action.kind;
    schedule_.workers[index].push_back(action);
    (action.kind == kF ? ends_soon_ : ends_later_).push_back(action);
  }

  void finish(const Action& action) {
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    workers_[schedule_.worker_of_stage[stage]].is_busy = false;
    if (action.kind == kB) {
      if (stage > 0) make_ready({kB, stage - 1, micro_batch});
      return;
    }
    if (stage == 0 && micro_batch + 1 < schedule_.num_micro_batches) make_ready({kF, 0, micro_batch + 1});
    const bool is_last = stage + 1 == schedule_.num_stages;
    make_ready(is_last ? Action{kB, stage, micro_batch} : Action{kF, stage + 1, micro_batch});
  }

  Schedule& schedule_;
  const int num_workers_;
  const int chunks_;
  std::vector<Worker> workers_;
  std::vector<Action> ends_soon_;   // after this time unit
  std::vector<Action> ends_later_;  // after the next
};

}  // namespace

Schedule hanayo(int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = wave_schedule("hanayo", num_workers, num_micro_batches, chunks);
  require(chunks % 2 == 0, "hanayo: chunks must be a multiple of 2, got {}: a wave goes down the workers and up again",
          chunks);
  WaveOrder(schedule).run();
  return schedule;
}

}  // namespace gpipe::schedules
