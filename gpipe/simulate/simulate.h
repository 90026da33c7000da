// The simulator: a discrete-event run of a schedule on costs instead of tensors.
#pragma once

#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/report/timeline.h"
#include "gpipe/schedule/message_order.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct SimulateOptions {
  // One per flow of make_flow_table(schedule, costs.routes), in its order; empty = unbounded. A full flow makes its
  // sender wait.
  std::vector<int> capacities;
  bool critical_path = true;
  // Not empty: each worker has one engine, which carries the messages that it sends and receives in this order, one at
  // a time; a message takes its transfer time and its latency of both. Then flows have no capacities.
  MessageOrder one_engine = {};
};

// Every worker runs its actions in order. An action starts when its worker is free and its messages have arrived; a
// message leaves at the end of the action that made it, waits for those before it on its link, takes its transfer time
// and then the link's latency. All messages from one worker to another share one link; those back have their own.
//
// Throws InvalidArgument if `costs` is for another number of stages or has a negative or non-finite cost, and
// ScheduleError if the schedule cannot run to its end, or not in the given order of messages. Linear in the number of
// actions.
Timeline simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options = {});

// The order in which the messages between workers are put in this step, with flows on their own: what ranks need whose
// messages go through one engine each, see Note [One engine a worker]. The same costs give the same order on each rank.
//
// Throws as `simulate` does.
MessageOrder message_order(const Schedule& schedule, const Costs& costs);

// Every stage costs the same, so that a worker's whole share takes these seconds: with v chunks a worker each stage
// takes one v-th.
Costs uniform_costs(const Schedule& schedule, const StageCosts& worker_share = {});

}  // namespace gpipe
