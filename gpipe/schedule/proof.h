// What the proof of a schedule is made of: its lists, the capacities of its flows, and counter-examples, which say what
// workers wait for each other, and for what.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::detail {

// The rules a schedule keeps or breaks by its lists alone, before anything is said about time: placement, completeness
// and channel order. Throws ScheduleError at the first violation. Time and memory are linear in the number of actions,
// whatever the counts claim.
void check_structure(const Schedule& schedule);

// Throws ScheduleError unless the schedule runs to its end on unbounded flows. REQUIRES: check_structure has passed.
void check_no_deadlock(const Schedule& schedule, const FlowTable& table);

// Capacities that are live together, none of which alone can be lowered; their largest is the least uniform capacity
// that is live. For a flow inside a worker, what it has to hold.
//
// REQUIRES of these and of the next two: the schedule runs to its end on unbounded flows.
std::vector<int> live_capacities(const Schedule& schedule, const FlowTable& table);

// For each flow the least capacity at which no sender ever waits for room, whatever the actions cost. Nothing if the
// schedule is so large that it would take more than some seconds: the work is actions x flows.
std::optional<std::vector<int>> free_capacities(const Schedule& schedule, const FlowTable& table);

// Whether the schedule would run on a transport that promises less than one bounded channel per flow.
Survival survives_rendezvous(const Schedule& schedule, const FlowTable& table);
Survival survives_one_channel_per_pair(const Schedule& schedule, const FlowTable& table);

// "1B2", or "the end of the step" behind the last action.
std::string name_at(const Schedule& schedule, int worker, int index);

// The workers of a cycle: each waits for the next, the last for the first. Costs no more than the number of workers.
//
// REQUIRES of both: the token game, without engines, stopped before its end.
std::vector<int> cycle_of_workers(const FlowTable& table, const Standstill& standstill);

// An error that prints the cycle, one edge a line: an action and what it waits for.
ScheduleError deadlock_error(const Schedule& schedule, const FlowTable& table, const Standstill& standstill);

// A schedule that has been proven with the routes of a model, and what the proof has found out.
struct ProvenSchedule {
  Schedule schedule;
  FlowTable table;
  // One per flow: room enough that no sender ever waits for it, where that is known, else enough that none waits for
  // ever. Messages are handed over, not copied: what waits in a flow would wait in its sender otherwise.
  std::vector<int> capacities;
};

// Throws ScheduleError for a schedule that is wrong, InvalidArgument for routes that are.
std::shared_ptr<const ProvenSchedule> prove(Schedule schedule, const Routes& routes);

}  // namespace gpipe::detail
