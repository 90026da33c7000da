// ProvenSchedule: a schedule that has been proven with the routes of a model, and what the proof has found out.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct ProvenSchedule {
  Schedule schedule;
  FlowTable table;
  // One per flow: room enough that no sender ever waits for it, where that is known, else enough that none waits for
  // ever. Messages are handed over, not copied: what waits in a flow would wait in its sender otherwise.
  std::vector<int> capacities;
};

// Throws ScheduleError for a schedule that is wrong, InvalidArgument for routes that are.
std::shared_ptr<const ProvenSchedule> prove(Schedule schedule, const Routes& routes);

}  // namespace gpipe
