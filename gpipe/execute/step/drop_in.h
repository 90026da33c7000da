// The drop-in forward: a custom autograd function whose backward runs the pipeline's backward actions.
#pragma once

#include <torch/nn/module.h>

#include "gpipe/execute/engine/engine.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// See PipelineImpl::forward. `face` has the engine, and stays alive until the backward.
Tensors forward(torch::nn::Module& face, Engine& engine, const Tensors& inputs);

}  // namespace gpipe::detail
