// Plans of a given order, and plans of many micro-batches without their schedules being written out: what
// stands behind plan.h.
#pragma once

#include <vector>

#include "gpipe/plan/plan.h"
#include "gpipe/schedule/long_schedule.h"

namespace gpipe::detail {

// The same as plan_with_layers for an order of actions of any origin, with its recomputes, instead of the schedule of
// the options, whose modes are written down as they are. REQUIRES: as many stages on every worker.
Plan plan_with_order(const Profile& profile, const PlanOptions& options, Schedule order,
                     const std::vector<int>& layers_per_stage);

// See schedule_of.
LongSchedule long_schedule_of(const Plan& plan);

// `options` with what a partition takes from a schedule. REQUIRES: rule 1 of `validate`.
PartitionOptions options_for_schedule(PartitionOptions options, const Schedule& schedule);
PartitionOptions options_for_schedule(PartitionOptions options, const LongSchedule& schedule);

}  // namespace gpipe::detail
