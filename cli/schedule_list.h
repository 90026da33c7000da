// The list of all schedules: what each of them costs at one size, and what it is good for.
#pragma once

#include <string>

#include "cli/schedule_options.h"

namespace gpipe::cli {

// On lines of at most `width` columns, if that is 80 or more. The name of `options` is not used; sizes that are not
// given are 4 workers and 8 micro-batches. Throws UsageError for a number of chunks: each schedule has its own.
std::string schedule_list(const ScheduleOptions& options, int width);

}  // namespace gpipe::cli
