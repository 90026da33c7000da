// Work on the stages of this process outside of a step, each on its own worker.
#pragma once

#include <functional>

#include "gpipe/execute/engine/engine.h"

namespace gpipe::detail {

// Calls `work` for every stage of this process, on the thread of the stage's worker and in the stream of its device, in
// order with what the caller has enqueued there before and will enqueue after. Stages of one worker come one after the
// other. The first error wins and is thrown here. REQUIRES: there are stages, and no step runs.
void run_on_stages(Engine& engine, const std::function<void(int stage)>& work);

}  // namespace gpipe::detail
