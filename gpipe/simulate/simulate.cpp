#include "gpipe/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gpipe/schedule/engine_proof.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/put_recorder.h"
#include "gpipe/simulate/clock.h"
#include "gpipe/simulate/cost_table.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::check_no_deadlock;
using detail::check_structure;
using detail::Clock;
using detail::CostTable;
using detail::deadlock_error;
using detail::make_cost_table;
using detail::MessageEngines;
using detail::one_engine_a_worker;
using detail::PutRecorder;
using detail::require;
using detail::survives_one_engine;
using detail::TokenGame;

// What the same schedule would take if messages cost nothing and had room.
double makespan_without_communication(const Schedule& schedule, const FlowTable& table, CostTable costs) {
  for (std::vector<double>* seconds : {&costs.latency_seconds, &costs.transfer_seconds}) {
    std::fill(seconds->begin(), seconds->end(), 0.0);
  }
  Clock clock(schedule, table, costs, false);
  TokenGame<Clock>(schedule, table, {}, clock).run();
  return clock.makespan_seconds;
}

// REQUIRES: an order of messages is given.
void play_on_engines(const Schedule& schedule, const FlowTable& table, const SimulateOptions& options, Clock& clock) {
  require(options.capacities.empty(),
          "capacities are given, and an order of messages for one engine a worker, which has none");
  check_no_deadlock(schedule, table);
  const Survival survival = survives_one_engine(schedule, table, options.one_engine);
  if (!survival.survives) {
    throw ScheduleError(Rule::kDeadlock,
                        fmt::format("{}: in this order of messages these wait for each other:\n  {}",
                                    name(Rule::kDeadlock), fmt::join(survival.counter_example, "\n  ")),
                        {}, survival.counter_example);
  }
  MessageEngines engines = one_engine_a_worker(table, options.one_engine);
  engines.sender_waits = false;
  clock.use_engines();
  TokenGame<Clock>(schedule, table, {{}, false, &engines}, clock).run();
}

Breakdown make_breakdown(const Timeline& timeline, const Schedule& schedule, const CostTable& costs,
                         double free_makespan_seconds) {
  Breakdown breakdown;
  double busiest = 0;
  double busy = 0;
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    for (const Action& action : schedule.workers[worker]) {
      breakdown.seconds_of(action.kind) += costs.seconds(action);
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

MessageOrder message_order(const Schedule& schedule, const Costs& costs) {
  check_structure(schedule);
  const FlowTable table = make_flow_table(schedule, costs.routes);
  const CostTable cost_table = make_cost_table(schedule, table, costs);
  PutRecorder<Clock> recorder(schedule, table, cost_table, false);
  TokenGame<PutRecorder<Clock>> game(schedule, table, {}, recorder);
  if (!game.run()) throw deadlock_error(schedule, table, game.standstill());
  return recorder.order();
}

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
  if (options.one_engine.empty()) {
    TokenGame<Clock> game(schedule, table, {options.capacities, false}, clock);
    if (!game.run()) throw deadlock_error(schedule, table, game.standstill());
  } else {
    play_on_engines(schedule, table, options, clock);
  }
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

  const auto is_zero = [](const std::vector<double>& all) {
    return std::all_of(all.begin(), all.end(), [](double seconds) { return seconds == 0; });
  };
  const bool free =
      options.capacities.empty() && is_zero(cost_table.latency_seconds) && is_zero(cost_table.transfer_seconds);
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
