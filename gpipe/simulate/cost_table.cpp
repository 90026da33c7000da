#include "gpipe/simulate/cost_table.h"

#include <cmath>
#include <map>
#include <utility>

#include "gpipe/text/require.h"

namespace gpipe::detail {
namespace {

void check_not_negative(const char* what, double value) {
  require(value >= 0 && std::isfinite(value), "{} is {}; it must be finite and not negative", what, value);
}

void check_count(const char* what, std::size_t got, std::size_t expected) {
  require(got == expected, "{} are given for {}, but there are {}", what, got, expected);
}

void check_costs(const Schedule& schedule, const Costs& costs) {
  check_count("costs of stages", costs.stages.size(), schedule.num_stages);
  check_count("bytes of skips", costs.skip_bytes.size(), costs.routes.skips.size());
  check_count("bytes of ties", costs.tie_bytes.size(), costs.routes.ties.size());
  check_workers(costs.workers, schedule.num_workers(), "workers");
  check_link("link", costs.link);
  for (const StageCosts& stage : costs.stages) {
    check_not_negative("a stage's forward time", stage.forward_seconds);
    check_not_negative("a stage's backward time", stage.backward_seconds);
    check_not_negative("a stage's input gradient time", stage.input_grad_seconds);
    check_not_negative("a stage's weight gradient time", stage.weight_grad_seconds);
    check_not_negative("a stage's recompute time", stage.recompute_seconds);
    check_not_negative("a stage's update time", stage.update_seconds);
    check_not_negative("a stage's output bytes", static_cast<double>(stage.output_bytes));
  }
}

double flow_bytes(const Flow& flow, const Costs& costs) {
  if (flow.kind == FlowKind::kActivation) return static_cast<double>(costs.stages[flow.source].output_bytes);
  if (flow.kind == FlowKind::kGradient) return static_cast<double>(costs.stages[flow.destination].output_bytes);
  double bytes = 0;
  if (flow.kind == FlowKind::kTie) {
    for (std::size_t tie = 0; tie < costs.routes.ties.size(); ++tie) {
      const TieRoute& route = costs.routes.ties[tie];
      const bool is_carried = route.stage == flow.source && route.owner == flow.destination;
      if (is_carried) bytes += static_cast<double>(costs.tie_bytes[tie]);
    }
    return bytes;
  }
  const bool is_back = flow.kind == FlowKind::kSkipGradient;
  const int from = is_back ? flow.destination : flow.source;
  const int to = is_back ? flow.source : flow.destination;
  for (std::size_t skip = 0; skip < costs.routes.skips.size(); ++skip) {
    const SkipRoute& route = costs.routes.skips[skip];
    if (route.from_stage == from && route.to_stage == to) bytes += static_cast<double>(costs.skip_bytes[skip]);
  }
  return bytes;
}

}  // namespace

CostTable make_cost_table(const Schedule& schedule, const FlowTable& table, const Costs& costs) {
  check_costs(schedule, costs);
  CostTable result;
  result.update_seconds.assign(schedule.num_workers(), 0);
  const bool has_updates = schedule.has_updates();
  result.action_seconds.reserve(costs.stages.size() * kNumActionKinds);
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const StageCosts& cost = costs.stages[stage];
    const int worker = schedule.worker_of_stage[stage];
    const double speed = speed_of(costs.workers, worker);
    for (const double seconds : {cost.forward_seconds, cost.recompute_seconds, cost.backward_seconds,
                                 cost.input_grad_seconds, cost.weight_grad_seconds, cost.update_seconds}) {
      result.action_seconds.push_back(seconds / speed);
    }
    if (!has_updates) result.update_seconds[worker] += cost.update_seconds / speed;
  }
  std::map<std::pair<int, int>, int> links;
  for (std::size_t flow = 0; flow < table.flows.size(); ++flow) {
    const std::pair<int, int> ends = {table.source_worker[flow], table.destination_worker[flow]};
    const LinkCosts link = link_between(costs.workers, costs.link, ends.first, ends.second);
    result.latency_seconds.push_back(link.latency_seconds);
    result.transfer_seconds.push_back(flow_bytes(table.flows[flow], costs) / link.bytes_per_second);
    result.link_of_flow.push_back(links.emplace(ends, static_cast<int>(links.size())).first->second);
  }
  result.num_links = static_cast<int>(links.size());
  return result;
}

}  // namespace gpipe::detail
