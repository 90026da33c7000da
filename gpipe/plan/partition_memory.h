// What to say when no partition fits the memory limit.
#pragma once

#include <cstdint>

#include "gpipe/plan/interval_bytes.h"
#include "gpipe/plan/partition.h"

namespace gpipe {

// `live` of the options, or its default for any number of stages: see PartitionOptions.
std::vector<std::vector<Live>> live_of(const PartitionOptions& options, int num_stages);

// The least, over all partitions, of the bytes of the fullest stage.
std::int64_t least_fullest_bytes(const IntervalBytes& bytes, const std::vector<std::vector<Live>>& live);

// The least number of stages that fits the limit; 0 if none does.
int smallest_num_stages(const IntervalBytes& bytes, const PartitionOptions& options);

}  // namespace gpipe
