// Structure: the rules a schedule keeps or breaks by its lists alone, before anything is said about time.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Placement, completeness and channel order. Throws ScheduleError at the first violation. Time and memory are linear in
// the number of actions, whatever the counts claim.
void check_structure(const Schedule& schedule);

}  // namespace gpipe
