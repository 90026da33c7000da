#include "gpipe/schedule/flow.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>

#include "gpipe/error.h"

namespace gpipe {
namespace {

constexpr std::array<const char*, 5> kFlowNames = {"activation", "gradient", "skip", "skip gradient",
                                                   "tie"};  // by FlowKind

void check_stage(const Schedule& schedule, const char* what, int stage) {
  if (stage < 0 || stage >= schedule.num_stages) {
    throw InvalidArgument(
        fmt::format("{} names stage {}, but the schedule has stages 0 to {}", what, stage, schedule.num_stages - 1));
  }
}

int add_flow(FlowTable& table, const Schedule& schedule, const Flow& flow) {
  table.flows.push_back(flow);
  table.source_worker.push_back(schedule.worker_of_stage[flow.source]);
  table.destination_worker.push_back(schedule.worker_of_stage[flow.destination]);
  return static_cast<int>(table.flows.size()) - 1;
}

// Pairs of different stages, each once, in ascending order.
using StagePairs = std::set<std::pair<int, int>>;

StagePairs skip_pairs(const Schedule& schedule, const std::vector<SkipRoute>& skips) {
  StagePairs pairs;
  for (const SkipRoute& skip : skips) {
    check_stage(schedule, "a skip", skip.from_stage);
    check_stage(schedule, "a skip", skip.to_stage);
    if (skip.from_stage > skip.to_stage) {
      throw InvalidArgument(
          fmt::format("a skip goes from stage {} back to stage {}; it must be stashed before it is popped",
                      skip.from_stage, skip.to_stage));
    }
    if (skip.from_stage != skip.to_stage) pairs.insert({skip.from_stage, skip.to_stage});
  }
  return pairs;
}

StagePairs tie_pairs(const Schedule& schedule, const std::vector<TieRoute>& ties) {
  StagePairs pairs;
  for (const TieRoute& tie : ties) {
    check_stage(schedule, "a tie", tie.owner);
    check_stage(schedule, "a tie", tie.stage);
    if (tie.owner != tie.stage) pairs.insert({tie.owner, tie.stage});
  }
  return pairs;
}

std::vector<bool> updated_stages(const Schedule& schedule) {
  std::vector<bool> has_update(schedule.num_stages);
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kUpdate) has_update[action.stage] = true;
    }
  }
  return has_update;
}

}  // namespace

std::string to_string(const Flow& flow) {
  return fmt::format("{} {} -> {}", kFlowNames.at(static_cast<std::size_t>(flow.kind)), flow.source, flow.destination);
}

FlowTable make_flow_table(const Schedule& schedule, const Routes& routes) {
  FlowTable table;
  table.stages.resize(schedule.num_stages);
  table.step_inputs.resize(schedule.num_workers());
  const bool backward = schedule.has_backward();
  const auto add_forward = [&](FlowKind kind, int from, int to) {
    const int flow = add_flow(table, schedule, {kind, from, to});
    table.stages[from].forward_outputs.push_back(flow);
    table.stages[to].forward_inputs.push_back(flow);
  };
  const auto add_backward = [&](FlowKind kind, int from, int to) {
    if (!backward) return;
    const int flow = add_flow(table, schedule, {kind, from, to});
    table.stages[from].backward_outputs.push_back(flow);
    table.stages[to].backward_inputs.push_back(flow);
  };

  for (int stage = 0; stage + 1 < schedule.num_stages; ++stage) {
    add_forward(FlowKind::kActivation, stage, stage + 1);
    add_backward(FlowKind::kGradient, stage + 1, stage);
  }
  for (const auto& [from, to] : skip_pairs(schedule, routes.skips)) {
    add_forward(FlowKind::kSkip, from, to);
    add_backward(FlowKind::kSkipGradient, to, from);
  }
  const std::vector<bool> has_update = updated_stages(schedule);
  for (const auto& [owner, stage] : tie_pairs(schedule, routes.ties)) {
    if (!backward) continue;
    const int flow = add_flow(table, schedule, {FlowKind::kTie, stage, owner});
    table.stages[stage].step_outputs.push_back(flow);
    (has_update[owner] ? table.stages[owner].update_inputs : table.step_inputs[schedule.worker_of_stage[owner]])
        .push_back(flow);
  }
  return table;
}

}  // namespace gpipe
