#include "gpipe/schedule/generators/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"

namespace gpipe::schedules {
namespace {

// With no placement yet.
Schedule empty_schedule(const char* name, int num_workers, int num_micro_batches, int chunks) {
  const auto check = [&](const char* what, int count) {
    if (count < 1) throw InvalidArgument(fmt::format("{}: {} must be at least 1, got {}", name, what, count));
  };
  check("stages", num_workers);
  check("micro-batches", num_micro_batches);
  check("chunks", chunks);
  if (static_cast<std::int64_t>(num_workers) * chunks > kMaxStages) {
    throw InvalidArgument(
        fmt::format("{}: {} stages x {} chunks; the limit is {} in all", name, num_workers, chunks, kMaxStages));
  }
  // F, I and W of every stage and micro-batch; in floating point, so that no product overflows.
  const double num_actions = 3.0 * num_workers * num_micro_batches * chunks;
  if (num_actions > static_cast<double>(kMaxActions)) {
    throw InvalidArgument(
        fmt::format("{}: {} stages x {} micro-batches x {} chunks may take {:.0f} actions; the limit is {}", name,
                    num_workers, num_micro_batches, chunks, num_actions, kMaxActions));
  }
  Schedule schedule;
  schedule.name = name;
  schedule.num_stages = num_workers * chunks;
  schedule.num_micro_batches = num_micro_batches;
  schedule.worker_of_stage.resize(schedule.num_stages);
  schedule.workers.resize(num_workers);
  return schedule;
}

class Filler {
 public:
  Filler(const Schedule& order, int max_live)
      : order_(order), max_live_(max_live), forwards_(order.num_stages, 0), input_grads_(order.num_stages, 0) {
    workers_.resize(order.num_workers());
    for (int worker = 0; worker < order.num_workers(); ++worker) {
      workers_[worker].actions.reserve(order.workers[worker].size() * 3 / 2);
    }
  }

  // Every worker decides on what was finished before this time unit. A worker with nothing to do sleeps until one of
  // its stages, or a neighbour of one, has finished something.
  bool run() {
    std::vector<int> awake(order_.num_workers());
    std::iota(awake.begin(), awake.end(), 0);
    std::vector<Action> finished;
    for (std::int64_t left = order_.num_actions() * 3 / 2; left > 0;
         left -= static_cast<std::int64_t>(finished.size())) {
      finished.clear();
      for (const int worker : awake) {
        Action action;
        if (pick(worker, action)) finished.push_back(action);
      }
      if (finished.empty()) return false;
      awake.clear();
      for (const Action& action : finished) {
        finish(action);
        for (int stage = std::max(0, action.stage - 1); stage <= std::min(action.stage + 1, order_.num_stages - 1);
             ++stage) {
          awake.push_back(order_.worker_of_stage[stage]);
        }
      }
      std::sort(awake.begin(), awake.end());
      awake.erase(std::unique(awake.begin(), awake.end()), awake.end());
    }
    return true;
  }

  std::vector<std::vector<Action>> take() {
    std::vector<std::vector<Action>> actions;
    for (Worker& worker : workers_) actions.push_back(std::move(worker.actions));
    return actions;
  }

 private:
  struct Worker {
    std::vector<Action> actions;
    std::size_t next = 0;          // in the given order
    std::size_t next_pending = 0;  // in `pending`
    std::vector<Action> pending;   // W of every I that has run
    int live = 0;
  };

  // Stages run their forwards, and their input gradients, in ascending micro-batch order: a count says which are done.
  bool is_ready(const Worker& worker, const Action& action) const {
    if (action.kind == ActionKind::kForward) {
      return worker.live < max_live_ && (action.stage == 0 || forwards_[action.stage - 1] > action.micro_batch);
    }
    return forwards_[action.stage] > action.micro_batch &&
           (action.stage == order_.num_stages - 1 || input_grads_[action.stage + 1] > action.micro_batch);
  }

  bool pick(int index, Action& action) {
    Worker& worker = workers_[index];
    const auto& order = order_.workers[index];
    if (worker.next < order.size() && is_ready(worker, order[worker.next])) {
      action = order[worker.next++];
      if (action.kind == ActionKind::kForward) ++worker.live;
    } else if (worker.next_pending < worker.pending.size()) {
      action = worker.pending[worker.next_pending++];
      --worker.live;
    } else {
      return false;
    }
    worker.actions.push_back(action);
    return true;
  }

  void finish(const Action& action) {
    if (action.kind == ActionKind::kForward) ++forwards_[action.stage];
    if (action.kind != ActionKind::kInputGrad) return;
    ++input_grads_[action.stage];
    workers_[order_.worker_of_stage[action.stage]].pending.push_back(
        {ActionKind::kWeightGrad, action.stage, action.micro_batch});
  }

  const Schedule& order_;
  const int max_live_;
  std::vector<Worker> workers_;
  std::vector<int> forwards_;     // finished, by stage
  std::vector<int> input_grads_;  // finished, by stage
};

}  // namespace

Schedule loop_schedule(const char* name, int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = empty_schedule(name, num_workers, num_micro_batches, chunks);
  for (int stage = 0; stage < schedule.num_stages; ++stage) schedule.worker_of_stage[stage] = stage % num_workers;
  return schedule;
}

Schedule wave_schedule(const char* name, int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = empty_schedule(name, num_workers, num_micro_batches, chunks);
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const int step = stage % num_workers;
    schedule.worker_of_stage[stage] = stage / num_workers % 2 == 0 ? step : num_workers - 1 - step;
  }
  return schedule;
}

Schedule v_schedule(const char* name, int num_workers, int num_micro_batches) {
  return wave_schedule(name, num_workers, num_micro_batches, 2);
}

bool fill_weight_grads(Schedule& schedule, int max_live) {
  Filler filler(schedule, max_live);
  if (!filler.run()) return false;
  schedule.workers = filler.take();
  return true;
}

}  // namespace gpipe::schedules
