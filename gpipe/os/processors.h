// How many threads this machine can reasonably have: the one place that says so.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe::detail {

// That this process may use, at least 1.
int num_processors();

// Sixteen threads a processor, and never less than 64: some more than there are processors do no harm, thousands do.
int most_threads();

// Throws InvalidArgument, with the number that is possible, if `count` threads are more than that. `what` is what the
// user calls it, such as "threads_per_stage".
void check_threads(const std::string& what, std::int64_t count);

}  // namespace gpipe::detail
