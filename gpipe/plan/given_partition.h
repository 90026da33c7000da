// What a given partition takes, by the rules of partition.h.
#pragma once

#include <cstddef>
#include <vector>

#include "gpipe/plan/partition.h"
#include "gpipe/plan/profile.h"

namespace gpipe::detail {

// The memory limit is not looked at. Throws InvalidArgument as `partition` does, and if the layers do not add up.
Partition partition_of(const Profile& profile, const std::vector<int>& layers_per_stage,
                       const PartitionOptions& options);

// Fills the slowest and the makespan from the stages.
void add_up(Partition& partition, int num_micro_batches);

// Throws InvalidArgument unless every stage has a layer and they add up to `num_layers`.
void check_layers_per_stage(const std::vector<int>& layers_per_stage, std::size_t num_layers);

}  // namespace gpipe::detail
