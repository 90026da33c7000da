// The search for the best partition: dynamic programmes over the stages, from the last to the first.
#pragma once

#include <vector>

#include "gpipe/plan/interval_seconds.h"

namespace gpipe {

// What the search chooses from. Stage s may take the layers [begin, end) for begin < end <= (*furthest_end[s])[begin].
struct PartitionChoices {
  const IntervalSeconds& seconds;
  std::vector<const std::vector<int>*> furthest_end;
};

// Layers per stage of the partition that Objective describes; empty if there is none.
std::vector<int> best_layers_per_stage(const PartitionChoices& choices, Objective objective, int num_micro_batches);

}  // namespace gpipe
