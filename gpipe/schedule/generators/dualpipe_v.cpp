// DualPipeV: two chunks a worker in a V, in whose middle the forward of one micro-batch stands beside the backward of
// another.
#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/parts.h"

namespace gpipe::schedules {
namespace {

// Appends the actions of one worker, each for the next micro-batch of its direction and chunk. The order is laid out
// for at least 2K micro-batches; actions of those that do not exist are only counted.
class Line {
 public:
  Line(Schedule& schedule, int worker)
      : actions_(schedule.workers[worker]),
        num_micro_batches_(schedule.num_micro_batches),
        stages_{worker, schedule.num_stages - 1 - worker} {}

  void add(ActionKind kind, int chunk) { append(next(kind, chunk), kind); }

  // A forward and, in the same cell of PyTorch's form, a backward.
  void add_pair(int forward_chunk, int backward_chunk) {
    const std::size_t before = actions_.size();
    add(kF, forward_chunk);
    add(kB, backward_chunk);
    if (actions_.size() == before + 2) actions_.back().shares_cell = true;
  }

  // The oldest weight gradient that has been put off.
  void add_weight_grad() {
    if (put_off_.empty()) return;
    actions_.push_back(put_off_.front());
    put_off_.pop_front();
  }
  void add_all_weight_grads() {
    while (!put_off_.empty()) add_weight_grad();
  }

 private:
  Action next(ActionKind kind, int chunk) {
    int& count = (kind == kF ? forwards_ : backwards_)[chunk];
    return {kind, stages_[chunk], count++};
  }

  void append(const Action& action, ActionKind kind) {
    if (action.micro_batch >= num_micro_batches_) return;
    actions_.push_back(action);
    if (kind == kI) put_off_.push_back({kW, action.stage, action.micro_batch});
  }

  std::vector<Action>& actions_;
  const int num_micro_batches_;
  const std::array<int, 2> stages_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> backwards_{};
  std::deque<Action> put_off_;
};

// The end of the V: the first half of these backwards is whole, of the second half the weight gradients are put off.
void add_last_backwards(Line& line, int count) {
  for (int half_backward = 0; half_backward < 2 * count; ++half_backward) {
    line.add(half_backward < count ? kB : kI, half_backward % 2 == 0 ? 1 : 0);
  }
}

}  // namespace

Schedule dualpipe_v(int num_workers, int num_micro_batches) {
  Schedule schedule = v_schedule("dualpipe-v", num_workers, num_micro_batches);
  const int padded = std::max(num_micro_batches, 2 * num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    const int below = num_workers - 1 - worker;
    Line line(schedule, worker);
    for (int n = 0; n < 2 * below; ++n) line.add(kF, 0);
    for (int n = 0; n <= worker; ++n) {
      line.add(kF, 0);
      line.add(kF, 1);
    }
    for (int n = 0; n < below; ++n) {
      line.add(kI, 1);
      line.add_weight_grad();
      line.add(kF, 1);
    }
    for (int n = 0; n < padded - 2 * num_workers + worker + 1; ++n) {
      if (n == 0 && below == 0) {
        line.add(kF, 0);  // its backward is that of the forward just before
        line.add(kB, 1);
      } else {
        line.add_pair(0, 1);
      }
      line.add_pair(1, 0);
    }
    for (int n = 0; n < below; ++n) {
      line.add(kB, 1);
      line.add_pair(1, 0);
    }
    add_last_backwards(line, worker + 1);
    for (int n = 0; n < below; ++n) {
      line.add_weight_grad();
      line.add(kI, 0);
    }
    line.add_all_weight_grads();
  }
  return schedule;
}

}  // namespace gpipe::schedules
