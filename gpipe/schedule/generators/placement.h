// What the generators share: checked counts and the placements of stages on workers.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe::schedules {

// An empty schedule of num_workers x chunks stages, with no placement yet. Throws InvalidArgument for a count below one
// or if it would take more than kMaxActions actions.
Schedule empty_schedule(const char* name, int num_workers, int num_micro_batches, int chunks);

// Stage s on worker s mod K: a loop, or a line when there is one chunk.
Schedule loop_schedule(const char* name, int num_workers, int num_micro_batches, int chunks);

// Stages w and 2K-1-w on worker w.
Schedule v_schedule(const char* name, int num_workers, int num_micro_batches);

}  // namespace gpipe::schedules
