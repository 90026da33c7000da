// The counter-example of a deadlock: which workers wait for each other, and for what.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {

// The workers of a cycle: each waits for the next, the last for the first. Costs no more than the number of workers.
//
// REQUIRES of all: the token game stopped before its end.
std::vector<int> cycle_of_workers(const FlowTable& table, const Standstill& standstill);

struct Cycle {
  std::vector<Action> actions;     // that wait
  std::vector<std::string> edges;  // one line each: an action and what it waits for
};

Cycle find_cycle(const Schedule& schedule, const FlowTable& table, const Standstill& standstill,
                 bool rendezvous = false);

// The same as an error that prints the cycle, one edge a line.
ScheduleError deadlock_error(const Schedule& schedule, const FlowTable& table, const Standstill& standstill);

// "1B2", or "the end of the step" behind the last action.
std::string name_at(const Schedule& schedule, int worker, int index);

}  // namespace gpipe
