#include "gpipe/schedule/flow.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpipe/error.h"

namespace gpipe {
namespace {

const char* name(FlowKind kind) {
  switch (kind) {
    case FlowKind::kActivation:
      return "activation";
    case FlowKind::kGradient:
      return "gradient";
    case FlowKind::kSkip:
      return "skip";
    case FlowKind::kSkipGradient:
      return "skip gradient";
    case FlowKind::kTie:
      return "tie";
  }
  return "unknown";
}

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

// The skips between different stages, each pair of stages once, in ascending order.
std::vector<SkipRoute> distinct(const Schedule& schedule, std::vector<SkipRoute> skips) {
  for (const SkipRoute& skip : skips) {
    check_stage(schedule, "a skip", skip.from_stage);
    check_stage(schedule, "a skip", skip.to_stage);
    if (skip.from_stage > skip.to_stage) {
      throw InvalidArgument(
          fmt::format("a skip goes from stage {} back to stage {}; it must be stashed before it is popped",
                      skip.from_stage, skip.to_stage));
    }
  }
  const auto key = [](const SkipRoute& skip) { return std::pair(skip.from_stage, skip.to_stage); };
  std::sort(skips.begin(), skips.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  skips.erase(std::unique(skips.begin(), skips.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
              skips.end());
  skips.erase(
      std::remove_if(skips.begin(), skips.end(), [](const auto& skip) { return skip.from_stage == skip.to_stage; }),
      skips.end());
  return skips;
}

// The same for ties.
std::vector<TieRoute> distinct(const Schedule& schedule, std::vector<TieRoute> ties) {
  for (const TieRoute& tie : ties) {
    check_stage(schedule, "a tie", tie.owner);
    check_stage(schedule, "a tie", tie.stage);
  }
  const auto key = [](const TieRoute& tie) { return std::pair(tie.owner, tie.stage); };
  std::sort(ties.begin(), ties.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  ties.erase(std::unique(ties.begin(), ties.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
             ties.end());
  ties.erase(std::remove_if(ties.begin(), ties.end(), [](const auto& tie) { return tie.owner == tie.stage; }),
             ties.end());
  return ties;
}

}  // namespace

std::string to_string(const Flow& flow) {
  return fmt::format("{} {} -> {}", name(flow.kind), flow.source, flow.destination);
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
  for (const SkipRoute& skip : distinct(schedule, routes.skips)) {
    add_forward(FlowKind::kSkip, skip.from_stage, skip.to_stage);
    add_backward(FlowKind::kSkipGradient, skip.to_stage, skip.from_stage);
  }
  for (const TieRoute& tie : distinct(schedule, routes.ties)) {
    if (!backward) continue;
    const int flow = add_flow(table, schedule, {FlowKind::kTie, tie.stage, tie.owner});
    table.stages[tie.stage].step_outputs.push_back(flow);
    table.step_inputs[schedule.worker_of_stage[tie.owner]].push_back(flow);
  }
  return table;
}

}  // namespace gpipe
