// ZB-V, V-Half and V-Min: two chunks a worker in a V, with W filled in. Chunk 0 of worker w is stage w, chunk 1 is
// stage 2K-1-w: a micro-batch goes down the workers, comes back up, and its gradient does the same.
#include <algorithm>
#include <array>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/generators/parts.h"

namespace gpipe::schedules {
namespace {

// Appends actions of one worker, each taking the next micro-batch of its kind and chunk; those that do not exist are
// only counted.
class Appender {
 public:
  Appender(Schedule& schedule, int worker)
      : actions_(schedule.workers[worker]),
        num_micro_batches_(schedule.num_micro_batches),
        stages_{worker, schedule.num_stages - 1 - worker} {}

  void add(ActionKind kind, int chunk) {
    const int micro_batch = count(kind, chunk)++;
    if (micro_batch < num_micro_batches_) actions_.push_back({kind, stages_[chunk], micro_batch});
  }
  int& count(ActionKind kind, int chunk) { return kind == kF ? forwards_[chunk] : input_grads_[chunk]; }
  bool is_complete() const { return actions_.size() == std::size_t{4} * static_cast<std::size_t>(num_micro_batches_); }

 private:
  std::vector<Action>& actions_;
  const int num_micro_batches_;
  const std::array<int, 2> stages_;
  std::array<int, 2> forwards_{};
  std::array<int, 2> input_grads_{};
};

// Note [Building block]
// ~~~~~~~~~~~~~~~~~~~~~
// V-Half and V-Min repeat one building block every six time units: the F, F, I, I of one micro-batch on the two chunks
// of each worker, leaving two units for its W's. The block is given by the time it takes from one worker to the next
// (`down` and `up`, the same for the activations and for the gradients) and by the turns: at the last worker, at the
// first, and at the last again.
//
//   worker 0   F . . . . . . F I . . . . . . I          down = up = 1, turns = 1 1 1
//   worker 1   . F . . . . F . . I . . . . I .
//   worker 2   . . F . . F . . . . I . . I . .
//   worker 3   . . . F F . . . . . . I I . . .
//
// The sum of down and up decides how long activations live, so the memory: 2 for V-Min, 3 for V-Half. The turns are the
// shortest for which no two actions of a worker, repeated every six units, fall on the same unit.
struct BuildingBlock {
  int down;
  int up;
  std::array<int, 3> turns;
};

constexpr int kPeriod = 6;

struct Timed {
  int time;
  Action action;
};

std::vector<Action> repeat(const BuildingBlock& block, const Schedule& schedule, int worker) {
  const int last = schedule.num_workers() - 1;
  const int forward0 = block.down * worker;
  const int forward1 = block.down * last + block.turns[0] + block.up * (last - worker);
  const int first_grad = (block.down + block.up) * last + block.turns[0] + block.turns[1];
  const int input_grad1 = first_grad + block.down * worker;
  const int input_grad0 = first_grad + block.down * last + block.turns[2] + block.up * (last - worker);
  const int stage1 = schedule.num_stages - 1 - worker;
  std::vector<Timed> timed;
  timed.reserve(static_cast<std::size_t>(schedule.num_micro_batches) * 4);
  for (int m = 0; m < schedule.num_micro_batches; ++m) {
    timed.push_back({forward0 + kPeriod * m, {kF, worker, m}});
    timed.push_back({forward1 + kPeriod * m, {kF, stage1, m}});
    timed.push_back({input_grad1 + kPeriod * m, {kI, stage1, m}});
    timed.push_back({input_grad0 + kPeriod * m, {kI, worker, m}});
  }
  std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.time < b.time; });
  std::vector<Action> actions;
  actions.reserve(timed.size());
  for (const Timed& entry : timed) actions.push_back(entry.action);
  return actions;
}

// Fills with `max_live`, or with the least above it that the order needs.
void fill_gaps(Schedule& schedule, int max_live) {
  while (!fill_weight_grads(schedule, max_live)) ++max_live;
}

Schedule from_building_block(Schedule schedule, const BuildingBlock& block, int max_live) {
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    schedule.workers[worker] = repeat(block, schedule, worker);
  }
  fill_gaps(schedule, max_live);
  return schedule;
}

}  // namespace

Schedule zb_v(int num_workers, int num_micro_batches) {
  Schedule schedule = v_schedule("zb-v", num_workers, num_micro_batches);
  // Laid out for at least 2K micro-batches, of which only those that there are get actions.
  const int padded = std::max(num_micro_batches, 2 * num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    Appender actions(schedule, worker);
    // Warm-up: forwards of chunk 0 until the first one is back on chunk 1; then both; then chunk 1 forth and back.
    for (int n = 0; n < 2 * (num_workers - worker) - 1; ++n) actions.add(kF, 0);
    for (int n = 0; n < worker; ++n) {
      actions.add(kF, 1);
      actions.add(kF, 0);
    }
    for (int n = 0; n < num_workers - worker; ++n) {
      actions.add(kF, 1);
      actions.add(kI, 1);
    }
    // Steady: one F and one I of each chunk in turn.
    while (actions.count(kF, 1) < padded && !actions.is_complete()) {
      if (actions.count(kF, 0) < padded) actions.add(kF, 0);
      actions.add(kI, 0);
      actions.add(kF, 1);
      actions.add(kI, 1);
    }
    while (!actions.is_complete()) {
      actions.add(kI, 0);
      actions.add(kI, 1);
    }
  }
  fill_gaps(schedule, 2 * num_workers);
  return schedule;
}

Schedule v_half(int num_workers, int num_micro_batches) {
  const BuildingBlock block{1, 2, num_workers % 2 == 1 ? std::array{1, 1, 2} : std::array{4, 1, 5}};
  Schedule schedule = v_schedule("v-half", num_workers, num_micro_batches);
  return from_building_block(std::move(schedule), block, num_workers + 2);
}

Schedule v_min(int num_workers, int num_micro_batches) {
  Schedule schedule = v_schedule("v-min", num_workers, num_micro_batches);  // refuses sizes that would overflow below
  std::array<int, 3> turns{1, 1, 1};
  int max_live = 2 * num_workers / 3 + 2;
  if (num_workers % 3 == 0) turns = {3, 1, 3};
  if (num_workers == 2) {
    turns = {5, 1, 3};
  } else if (num_workers % 3 == 2) {
    // No block fits a third of the memory plus one micro-batch: none of six units, whatever it waits between workers,
    // and none of twelve units for two micro-batches. Some workers have their F, F, I, I in a row, and hold one chunk
    // more before their W's.
    ++max_live;
  }
  return from_building_block(std::move(schedule), {1, 1, turns}, max_live);
}

}  // namespace gpipe::schedules
