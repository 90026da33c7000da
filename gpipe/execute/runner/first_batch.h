// What the first batch tells about the layers: what they cost, and so how to cut them.
#pragma once

#include "gpipe/execute/cut/cut.h"
#include "gpipe/execute/model/model.h"
#include "gpipe/execute/stage/step_settings.h"
#include "gpipe/execute/values/pipeline_options.h"
#include "gpipe/interpret/workers.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/plan/profile.h"

namespace gpipe::detail {

// Runs the layers one after the other on the first worker, with the loss if there is one that goes well. Throws
// ActionError for what a layer throws, and SkipError. REQUIRES: this process has all layers.
Profile measure_layers(const Model& model, const PipelineOptions& options, Workers& workers, const MicroBatch& sample,
                       const StageLoss& loss);

// Fills in the layers of each stage and, if the options leave that open, what each stage drops, from the cut's profile.
// Throws InfeasibleError if nothing fits the memory limit and everything is left open. `is_alone`: in a world of one,
// where a search may put the last stage anywhere.
void choose_stages(Cut& cut, const Model& model, const PipelineOptions& options, bool is_alone);

}  // namespace gpipe::detail
