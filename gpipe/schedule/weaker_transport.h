// Whether a schedule would run on a transport that promises less than one bounded channel per flow.
#pragma once

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {

// REQUIRES of both: the schedule runs to its end on unbounded flows.
Survival survives_rendezvous(const Schedule& schedule, const FlowTable& table);
Survival survives_one_channel_per_pair(const Schedule& schedule, const FlowTable& table);

}  // namespace gpipe
