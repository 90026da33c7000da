// Cost table: costs checked against a schedule and laid out for the simulator's inner loop.
#pragma once

#include <cstddef>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::detail {

struct CostTable {
  std::vector<double> action_seconds;    // by stage and kind, on the stage's worker
  std::vector<double> update_seconds;    // by worker, behind its last action; 0 if the schedule has updates
  std::vector<double> transfer_seconds;  // by flow
  std::vector<double> latency_seconds;   // by flow
  std::vector<int> link_of_flow;         // flows from one worker to another share a link; the way back is another one
  int num_links = 0;

  double seconds(const Action& action) const {
    return action_seconds[static_cast<std::size_t>(action.stage) * kNumActionKinds +
                          static_cast<std::size_t>(action.kind)];
  }
};

// Throws InvalidArgument if `costs` does not fit the schedule or has a negative or non-finite cost.
CostTable make_cost_table(const Schedule& schedule, const FlowTable& table, const Costs& costs);

}  // namespace gpipe::detail
