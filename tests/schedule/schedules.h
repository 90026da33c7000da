// Every schedule the registry can make, for tests that go through all of them.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/registry.h"

namespace gpipe::test {

// Calls `visit(schedule, description)` for every generator and number of chunks up to max_chunks.
template <typename Visit>
void for_each_schedule(int num_workers, int num_micro_batches, int max_chunks, const Visit& visit) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (int chunks = 1; chunks <= max_chunks; ++chunks) {
      if (!takes_chunks(info, chunks)) continue;
      visit(make_schedule(info.name, num_workers, num_micro_batches, chunks),
            std::string(info.name) + " K=" + std::to_string(num_workers) + " M=" + std::to_string(num_micro_batches) +
                " v=" + std::to_string(chunks));
    }
  }
}

}  // namespace gpipe::test
