// train_step: forward, loss and backward of a mini-batch.
#pragma once

#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/step/weighed_loss.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// See PipelineImpl::train_step.
StepResult train_step(Engine& engine, const Tensors& inputs, const Tensors& targets, const UserLoss& loss);

}  // namespace gpipe::detail
