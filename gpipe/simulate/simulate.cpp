#include "gpipe/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/simulate/cost_table.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

constexpr std::uint32_t kNoCause = std::numeric_limits<std::uint32_t>::max();

// A player of the token game that keeps the time. See Note [Token game].
class Clock {
 public:
  // When a message has arrived or room was made, and the action that did it.
  struct Token {
    double seconds = 0;
    std::uint32_t cause = kNoCause;
  };

  Clock(const Schedule& schedule, const FlowTable& table, const CostTable& costs, bool record)
      : schedule_(schedule), table_(table), costs_(costs), record_(record) {
    const int num_workers = schedule.num_workers();
    now_.resize(num_workers);
    ready_.resize(num_workers);
    link_free_seconds_.assign(table.flows.size(), 0);
    workers.resize(num_workers);
    std::size_t offset = 0;
    for (int worker = 0; worker < num_workers; ++worker) {
      offsets_.push_back(static_cast<std::uint32_t>(offset));
      offset += schedule.workers[worker].size();
      if (record) workers[worker].spans.reserve(schedule.workers[worker].size());
    }
    if (record) causes.resize(offset, kNoCause);
  }

  void take(int worker, int, const Token& token) { later(ready_[worker], token); }

  void start(int worker, int index) {
    const Action& action = schedule_.workers[worker][index];
    Token& now = now_[worker];
    later(now, ready_[worker]);
    ready_[worker] = {};
    const double start = now.seconds;
    const double end = start + costs_.seconds(action);
    const std::uint32_t id = offsets_[worker] + static_cast<std::uint32_t>(index);
    started_ = {start, id};
    if (record_) {
      causes[id] = now.cause;
      workers[worker].spans.push_back({action, start, end});
    }
    now = {end, id};
  }

  Token slot(int, int) { return started_; }

  void claim(int worker, int, const Token& token) { later(now_[worker], token); }

  Token put(int worker, int flow) {
    const Token& now = now_[worker];
    if (table_.is_local(flow)) return now;
    double& free = link_free_seconds_[flow];
    free = std::max(free, now.seconds) + costs_.transfer_seconds[flow];
    return {free + costs_.latency_seconds, now.cause};
  }

  void end(int, int) {}

  void end_step(int worker) {
    Token& now = now_[worker];
    later(now, ready_[worker]);
    WorkerTimeline& timeline = workers[worker];
    timeline.update_start_seconds = now.seconds;
    timeline.update_end_seconds = now.seconds + costs_.update_seconds[worker];
    if (timeline.update_end_seconds > makespan_seconds || last_cause == kNoCause) last_cause = now.cause;
    makespan_seconds = std::max(makespan_seconds, timeline.update_end_seconds);
  }

  std::vector<SpanRef> critical_path() const {
    std::vector<SpanRef> path;
    for (std::uint32_t id = last_cause; id != kNoCause; id = causes[id]) {
      const auto worker = std::upper_bound(offsets_.begin(), offsets_.end(), id) - offsets_.begin() - 1;
      path.push_back({static_cast<int>(worker), static_cast<int>(id - offsets_[worker])});
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  double makespan_seconds = 0;
  std::uint32_t last_cause = kNoCause;
  std::vector<WorkerTimeline> workers;
  std::vector<std::uint32_t> causes;  // of each action: the one it waited for

 private:
  static void later(Token& token, const Token& other) {
    if (other.seconds > token.seconds) token = other;
  }

  const Schedule& schedule_;
  const FlowTable& table_;
  const CostTable& costs_;
  const bool record_;
  std::vector<Token> now_;                 // per worker: when it is free
  std::vector<Token> ready_;               // per worker: when the messages taken for its next action had arrived
  Token started_;                          // the action that started last
  std::vector<double> link_free_seconds_;  // per flow
  std::vector<std::uint32_t> offsets_;     // per worker: the number of its first action
};

// What the same schedule would take if messages cost nothing and had room.
double makespan_without_communication(const Schedule& schedule, const FlowTable& table, CostTable costs) {
  costs.latency_seconds = 0;
  std::fill(costs.transfer_seconds.begin(), costs.transfer_seconds.end(), 0.0);
  Clock clock(schedule, table, costs, false);
  TokenGame<Clock>(schedule, table, {}, clock).run();
  return clock.makespan_seconds;
}

Breakdown make_breakdown(const Timeline& timeline, const Schedule& schedule, const CostTable& costs,
                         double free_makespan_seconds) {
  Breakdown breakdown;
  double busiest = 0;
  double busy = 0;
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    for (const Action& action : schedule.workers[worker]) {
      (action.kind == ActionKind::kRecompute ? breakdown.recompute_seconds : breakdown.useful_seconds) +=
          costs.seconds(action);
    }
    breakdown.weight_update_seconds += costs.update_seconds[worker];
    busiest = std::max(busiest, timeline.workers[worker].busy_seconds);
    busy += timeline.workers[worker].busy_seconds;
  }
  const double num_workers = timeline.num_workers();
  breakdown.load_imbalance_seconds = std::max(0.0, num_workers * busiest - busy);
  breakdown.bubble_seconds = std::max(0.0, num_workers * (free_makespan_seconds - busiest));
  breakdown.communication_seconds = num_workers * (timeline.makespan_seconds - free_makespan_seconds);
  return breakdown;
}

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options) {
  check_structure(schedule);
  const FlowTable table = make_flow_table(schedule, costs.routes);
  require(options.capacities.empty() || options.capacities.size() == table.flows.size(),
          "capacities are given for {} flows, but the schedule has {}", options.capacities.size(), table.flows.size());
  for (const int capacity : options.capacities) {
    require(capacity >= 1, "a flow's capacity is {}; it must be at least 1", capacity);
  }
  const CostTable cost_table = make_cost_table(schedule, table, costs);

  Clock clock(schedule, table, cost_table, true);
  TokenGame<Clock> game(schedule, table, {options.capacities, false}, clock);
  if (!game.run()) throw deadlock_error(schedule, table, game.standstill());
  require(std::isfinite(clock.makespan_seconds),
          "the costs are so large that the step's time is not a number any more");

  Timeline timeline;
  timeline.name = schedule.name;
  timeline.num_stages = schedule.num_stages;
  timeline.num_micro_batches = schedule.num_micro_batches;
  timeline.workers = std::move(clock.workers);
  timeline.flows = table.flows;
  if (options.critical_path) timeline.critical_path = clock.critical_path();

  add_up(timeline);
  const std::vector<double> peak_activations = peak_activations_by_worker(schedule);
  const std::vector<std::int64_t> peak_bytes = peak_bytes_by_worker(schedule, stage_bytes(costs));
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    timeline.workers[worker].peak_activations = peak_activations[worker];
    timeline.workers[worker].peak_bytes = peak_bytes[worker];
  }

  const bool free = options.capacities.empty() && cost_table.latency_seconds == 0 &&
                    std::all_of(cost_table.transfer_seconds.begin(), cost_table.transfer_seconds.end(),
                                [](double seconds) { return seconds == 0; });
  const double free_makespan =
      free ? timeline.makespan_seconds : makespan_without_communication(schedule, table, cost_table);
  timeline.breakdown = make_breakdown(timeline, schedule, cost_table, free_makespan);
  return timeline;
}

Costs uniform_costs(const Schedule& schedule, const StageCosts& worker_share) {
  std::vector<int> num_stages(schedule.num_workers(), 0);
  for (const int worker : schedule.worker_of_stage) {
    require(worker >= 0 && worker < schedule.num_workers(), "a stage of the schedule lives on no worker");
    ++num_stages[worker];
  }
  Costs costs;
  for (const int worker : schedule.worker_of_stage) {
    const int parts = num_stages[worker];
    StageCosts stage = worker_share;
    for (double* seconds : {&stage.forward_seconds, &stage.backward_seconds, &stage.input_grad_seconds,
                            &stage.weight_grad_seconds, &stage.recompute_seconds, &stage.update_seconds}) {
      *seconds /= parts;
    }
    stage.static_bytes /= parts;
    stage.activation_bytes /= parts;
    stage.forward_working_bytes /= parts;
    stage.backward_working_bytes /= parts;
    if (stage.split) {
      for (std::int64_t* bytes : {&stage.split->deferred_bytes, &stage.split->input_grad_working_bytes,
                                  &stage.split->weight_grad_working_bytes}) {
        *bytes /= parts;
      }
    }
    costs.stages.push_back(stage);
  }
  return costs;
}

}  // namespace gpipe
