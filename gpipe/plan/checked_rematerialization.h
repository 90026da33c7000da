// What a rematerialization and its costs must be like.
#pragma once

#include <vector>

#include "gpipe/plan/rematerialization.h"

namespace gpipe::detail {

// Throws InvalidArgument, naming the layer, unless there are layers, seconds are finite and at least zero, and bytes
// are at least zero and add up to less than 2^63.
void check_rematerialization_costs(const std::vector<RematerializationCosts>& costs);

// Throws InvalidArgument, naming the run, unless the runs are of these layers, and as RematerializedRun says.
void check_rematerialization(const Rematerialization& rematerialization, int num_layers);

}  // namespace gpipe::detail
