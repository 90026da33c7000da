// Capacities: how many messages each flow has to hold so that a schedule runs, and so that it never waits for room.
#pragma once

#include <optional>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Capacities that are live together, none of which alone can be lowered; their largest is the least uniform capacity
// that is live. For a flow inside a worker, what it has to hold.
//
// REQUIRES: the schedule runs to its end on unbounded flows.
std::vector<int> live_capacities(const Schedule& schedule, const FlowTable& table);

// For each flow the least capacity at which no sender ever waits for room, whatever the actions cost. Nothing if the
// schedule is so large that it would take more than some seconds: the work is actions x flows.
//
// REQUIRES: the schedule runs to its end on unbounded flows.
std::optional<std::vector<int>> free_capacities(const Schedule& schedule, const FlowTable& table);

}  // namespace gpipe
