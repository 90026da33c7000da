// A schedule in a few words, as every command's report begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe::cli {

// "1 worker", "4 workers", "8 micro-batches"
std::string count_of(std::int64_t count, const std::string& thing);

// "4 workers, 8 stages, 8 micro-batches"
std::string describe_size(int num_workers, int num_stages, int num_micro_batches);

// "32 F, 32 B"
std::string count_kinds(const std::vector<Action>& actions);

}  // namespace gpipe::cli
