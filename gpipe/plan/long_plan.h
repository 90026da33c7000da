// Plans of many micro-batches: what plan.h says about schedules, without writing them out.
#pragma once

#include "gpipe/plan/plan.h"
#include "gpipe/schedule/long_schedule.h"

namespace gpipe::detail {

// See schedule_of.
LongSchedule long_schedule_of(const Plan& plan);

// See options_for_schedule.
PartitionOptions options_for_schedule(PartitionOptions options, const LongSchedule& schedule);

}  // namespace gpipe::detail
