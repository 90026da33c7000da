#include "gpipe/simulate/list_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace gpipe::detail {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

class ListScheduler {
 public:
  ListScheduler(Schedule placement, const FlowTable& table, const CostTable& costs, const std::vector<bool>& recomputes,
                const ListPolicy& policy)
      : schedule_(std::move(placement)),
        table_(table),
        costs_(costs),
        recomputes_(recomputes),
        policy_(policy),
        arrivals_(table.flows.size()),
        link_free_(costs.num_links, 0),
        stages_(schedule_.num_stages),
        workers_(schedule_.num_workers()) {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      workers_[schedule_.worker_of_stage[stage]].stages.push_back(stage);
    }
    for (std::vector<Action>& actions : schedule_.workers) actions.clear();
    double shortest = kUnknown;
    for (const double seconds : costs.action_seconds) {
      if (seconds > 0) shortest = std::min(shortest, seconds);
    }
    rounding_ = shortest == kUnknown ? 0 : shortest * 1e-6;
  }

  Schedule run() {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) choose(static_cast<int>(worker));
    while (true) {
      const auto first = std::min_element(workers_.begin(), workers_.end(),
                                          [](const Worker& a, const Worker& b) { return a.next_start < b.next_start; });
      if (first->next_start == kUnknown) return std::move(schedule_);
      commit(static_cast<int>(first - workers_.begin()));
    }
  }

 private:
  struct Stage {
    int forwards = 0;  // micro-batches whose action has been taken
    int backwards = 0;
    int weight_grads = 0;
  };
  struct Worker {
    std::vector<int> stages;
    double free = 0;
    int live = 0;
    bool did_forward = false;  // by the last action that was no weight gradient
    Action next;
    double next_start = kUnknown;
  };

  ActionKind backward_kind() const { return policy_.splits_backward ? ActionKind::kInputGrad : ActionKind::kBackward; }

  double seconds(const Action& action) const {
    const bool with_recompute = makes_input_grad(action.kind) && recomputes_[action.stage];
    return costs_.seconds(action) +
           (with_recompute ? costs_.seconds({ActionKind::kRecompute, action.stage, action.micro_batch}) : 0);
  }

  // When all that the action takes has arrived, as far as that is known.
  double ready(const Action& action) const {
    double time = 0;
    for (const int flow : table_.inputs(action)) {
      const std::vector<double>& arrivals = arrivals_[flow];
      const auto index = static_cast<std::size_t>(action.micro_batch);
      time = std::max(time, index < arrivals.size() ? arrivals[index] : kUnknown);
    }
    return time;
  }

  bool may_begin(const Worker& worker, int index, int stage) const {
    return stage != worker.stages.front() || worker.live == 0 || worker.live < policy_.max_live[index];
  }

  // Whether `a` is taken rather than `b`, both ready.
  bool comes_before(const Worker& worker, const Action& a, const Action& b) const {
    const bool is_forward = a.kind == ActionKind::kForward;
    if (is_forward != (b.kind == ActionKind::kForward)) {
      const bool takes_forward = policy_.kind == ListPolicy::Kind::kForward ||
                                 (policy_.kind == ListPolicy::Kind::kInTurn && !worker.did_forward);
      return is_forward == takes_forward;
    }
    if (policy_.stage == ListPolicy::Stage::kEarlier) return a.stage < b.stage;
    if (policy_.stage == ListPolicy::Stage::kOldestMicroBatch && a.micro_batch != b.micro_batch) {
      return a.micro_batch < b.micro_batch;
    }
    return a.stage > b.stage;
  }

  // What the worker does next, as far as it is known now.
  void choose(int index) {
    Worker& worker = workers_[index];
    worker.next_start = kUnknown;
    for (const int stage : worker.stages) {
      const Stage& done = stages_[stage];
      if (done.forwards < schedule_.num_micro_batches && may_begin(worker, index, stage)) {
        consider(worker, {ActionKind::kForward, stage, done.forwards});
      }
      if (done.backwards < done.forwards) consider(worker, {backward_kind(), stage, done.backwards});
    }
    if (!policy_.splits_backward) return;
    const Action weight_grad = oldest_weight_grad(worker);
    if (weight_grad.micro_batch < 0) return;
    const double until = worker.free + policy_.patience * costs_.seconds(weight_grad);
    if (worker.next_start <= until + rounding_) return;
    worker.next = weight_grad;
    worker.next_start = worker.free;
  }

  void consider(Worker& worker, const Action& action) const {
    const double arrived = ready(action);
    if (arrived == kUnknown) return;
    const double start = std::max(worker.free, arrived);
    const bool is_equal = std::abs(start - worker.next_start) <= rounding_;
    if (is_equal ? !comes_before(worker, action, worker.next) : start > worker.next_start) return;
    worker.next = action;
    worker.next_start = start;
  }

  Action oldest_weight_grad(const Worker& worker) const {
    Action oldest(ActionKind::kWeightGrad, 0, -1);
    for (const int stage : worker.stages) {
      const Stage& done = stages_[stage];
      if (done.weight_grads == done.backwards) continue;
      if (oldest.micro_batch < 0 || done.weight_grads <= oldest.micro_batch) {
        oldest = {ActionKind::kWeightGrad, stage, done.weight_grads};
      }
    }
    return oldest;
  }

  void commit(int index) {
    Worker& worker = workers_[index];
    const Action action = worker.next;
    Stage& done = stages_[action.stage];
    schedule_.workers[index].push_back(action);
    worker.free = worker.next_start + seconds(action);
    if (action.kind == ActionKind::kForward) {
      ++done.forwards;
      if (!recomputes_[action.stage]) ++worker.live;
    } else if (makes_input_grad(action.kind)) {
      ++done.backwards;
      if (recomputes_[action.stage] && policy_.splits_backward) ++worker.live;
    } else {
      ++done.weight_grads;
    }
    if (action.kind != ActionKind::kWeightGrad) worker.did_forward = action.kind == ActionKind::kForward;
    const bool frees = policy_.splits_backward ? action.kind == ActionKind::kWeightGrad
                                               : makes_weight_grad(action.kind) && !recomputes_[action.stage];
    if (frees) --worker.live;
    send(worker, action);
    choose(index);
    for (const int flow : table_.outputs(action)) {
      if (!table_.is_local(flow)) choose(table_.destination_worker[flow]);
    }
  }

  void send(const Worker& worker, const Action& action) {
    for (const int flow : table_.outputs(action)) {
      if (table_.is_local(flow)) {
        arrivals_[flow].push_back(worker.free);
        continue;
      }
      double& free = link_free_[costs_.link_of_flow[flow]];
      free = std::max(free, worker.free) + costs_.transfer_seconds[flow];
      arrivals_[flow].push_back(free + costs_.latency_seconds[flow]);
    }
  }

  Schedule schedule_;
  const FlowTable& table_;
  const CostTable& costs_;
  const std::vector<bool>& recomputes_;
  const ListPolicy& policy_;
  std::vector<std::vector<double>> arrivals_;  // per flow and micro-batch
  std::vector<double> link_free_;              // per link
  std::vector<Stage> stages_;
  std::vector<Worker> workers_;
  double rounding_ = 0;  // seconds that two equal times may differ by
};

}  // namespace

Schedule list_schedule(Schedule placement, const FlowTable& table, const CostTable& costs,
                       const std::vector<bool>& recomputes, const ListPolicy& policy) {
  return ListScheduler(std::move(placement), table, costs, recomputes, policy).run();
}

}  // namespace gpipe::detail
