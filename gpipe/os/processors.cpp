#include "gpipe/os/processors.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "gpipe/error.h"

namespace gpipe::detail {

int num_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int most_threads() {
  constexpr int kPerProcessor = 16;
  constexpr int kLeast = 64;
  return std::max(kLeast, kPerProcessor * num_processors());
}

void check_threads(const std::string& what, std::int64_t count) {
  if (count <= most_threads()) return;
  throw InvalidArgument(fmt::format("{} is {}; this machine has {} processor{} and can have at most {} threads for it",
                                    what, count, num_processors(), num_processors() == 1 ? "" : "s", most_threads()));
}

}  // namespace gpipe::detail
