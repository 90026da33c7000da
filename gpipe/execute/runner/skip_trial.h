// Skip trial: finds the skips of a model by running its layers once, stage after stage, before the first step.
#pragma once

#include <vector>

#include "gpipe/execute/runner/assembly.h"
#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/interpret/workers.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"

namespace gpipe::detail {

// Called by all ranks. Each stage runs on its own worker and device, under the options' watchdog. `sample` counts where
// the first stage is. The layers are left as they were. Throws ActionError for what a layer throws; SkipError, on all
// ranks, for skips that do not fit together.
std::vector<SkipProfile> find_skips(const Assembly::Parts& parts, const PipelineOptions& options, Workers& workers,
                                    const CallerState& caller, const MicroBatch& sample);

}  // namespace gpipe::detail
