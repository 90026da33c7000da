// The simulator: a discrete-event run of a schedule on costs instead of tensors.
#pragma once

#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct SimulateOptions {
  // One per flow of make_flow_table(schedule, costs.routes), in its order; empty = unbounded. A full flow makes its
  // sender wait.
  std::vector<int> capacities;
  bool critical_path = true;
};

// Every worker runs its actions in order. An action starts when its worker is free and its messages have arrived; a
// message leaves at the end of the action that made it, waits for those before it on its link, takes its transfer time
// and then the link's latency. All messages from one worker to another share one link; those back have their own.
//
// Throws InvalidArgument if `costs` is for another number of stages or has a negative or non-finite cost, and
// ScheduleError if the schedule cannot run to its end. Linear in the number of actions.
Timeline simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options = {});

// Every stage costs the same, so that a worker's whole share takes these seconds: with v chunks a worker each stage
// takes one v-th.
Costs uniform_costs(const Schedule& schedule, const StageCosts& worker_share = {});

}  // namespace gpipe
