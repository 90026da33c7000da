// A partition whose stages recompute no more than they must: where the search of a plan starts.
#pragma once

#include <vector>

#include "gpipe/plan/plan.h"

namespace gpipe {

// The layers per stage whose slowest stage is the fastest, if each stage takes the first of never, except-last and
// always in which it fits; messages are not counted. Empty if nothing fits. With several stages a worker, each gets an
// equal part of the limit. Takes O(stages · layers²).
//
// REQUIRES: `options` names a schedule, its chunks and micro-batches that exist, and has a memory limit; `profile` has
// passed check_profile.
std::vector<int> mixed_layers_per_stage(const Profile& profile, const PlanOptions& options);

}  // namespace gpipe
