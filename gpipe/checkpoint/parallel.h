// Independent pieces of work on a few threads, for reading and writing several files at a time.
#pragma once

#include <cstddef>
#include <functional>

namespace gpipe::detail {

// Calls work(0) to work(count - 1), on at most `num_threads` threads, 0 for as many as there are cores. Returns when
// all have returned; no more are begun once one has thrown. Throws what the first of them threw.
void run_parallel(std::size_t count, const std::function<void(std::size_t)>& work, int num_threads = 0);

}  // namespace gpipe::detail
