// What a rematerialization makes of the costs of a stage, and of a plan.
#pragma once

#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"

namespace gpipe::detail {

// Whether a skip begins or ends in the layers [begin, end): rematerialization_costs do not say who holds it.
bool uses_skips(const Profile& profile, int begin, int end);

// The costs of the stage of these layers, which were `costs` without it: the backward takes the time of the layers that
// are run again, and less is held. REQUIRES: the runs are of its layers.
StageCosts with_rematerialization(StageCosts costs, const std::vector<RematerializationCosts>& layers,
                                  const Rematerialization& rematerialization);

// Puts the rematerializations of its stages, one each, into a plan that has none, with their seconds and bytes; the
// step is to be predicted again. Changes nothing if there are none. `profile` is that of the plan's micro-batches.
void set_rematerialization(Plan& plan, const Profile& profile, const std::vector<Rematerialization>& rematerialization);

}  // namespace gpipe::detail
