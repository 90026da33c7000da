// What a rematerialization makes of the costs of a stage, and of a plan.
#pragma once

#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/plan.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"

namespace gpipe {

// Of the layers [begin, end) as a stage. In a profile, a tensor between two layers that is kept counts with the layer
// that made it; here with the layer behind it, so that it counts where the first is dropped and the second is not. The
// input of the stage counts in neither.
//
// REQUIRES: `profile` has passed check_profile.
std::vector<RematerializationCosts> rematerialization_costs(const Profile& profile, int begin, int end);

// Whether a skip begins or ends in the layers [begin, end): these costs do not say who holds it.
bool uses_skips(const Profile& profile, int begin, int end);

// The costs of the stage of these layers, which were `costs` without it: the backward takes the time of the layers that
// are run again, and less is held. REQUIRES: the runs are of its layers.
StageCosts with_rematerialization(StageCosts costs, const std::vector<RematerializationCosts>& layers,
                                  const Rematerialization& rematerialization);

// Puts the rematerializations of its stages, one each, into a plan that has none, with their seconds and bytes; the
// step is to be predicted again. Changes nothing if there are none. `profile` is that of the plan's micro-batches.
void set_rematerialization(Plan& plan, const Profile& profile, const std::vector<Rematerialization>& rematerialization);

}  // namespace gpipe
