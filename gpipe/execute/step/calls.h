// The calls of a pipeline that concern all of its stages, on an engine. Each is in a file of its own.
#pragma once

#include <torch/nn/module.h>

#include <functional>

#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

using UserLoss = std::function<LossValue(const Tensors& outputs, const Tensors& targets)>;

// See PipelineImpl::train_step.
StepResult train_step(Engine& engine, const Tensors& inputs, const Tensors& targets, const UserLoss& loss);

// See PipelineImpl::forward. `face` has the engine, and stays alive until the backward.
Tensors forward(torch::nn::Module& face, Engine& engine, const Tensors& inputs);

// See gpipe::clip_grad_norm_.
double clip_grad_norm(Engine& engine, double max_norm, double norm_type);

}  // namespace gpipe::detail
