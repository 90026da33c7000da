// The reference the pipeline is held against: plain gradient accumulation over the same micro-batches in one thread.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::test {

using SimpleLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

// Forward of one micro-batch through a plain Sequential, layer by layer, with the pipeline's random streams.
inline at::Tensor plain_forward(torch::nn::Sequential& model, at::Tensor tensor, LayerRun run) {
  for (auto layer = model->begin(); layer != model->end(); ++layer, ++run.layer) {
    const LayerScope scope(run);
    tensor = layer->forward(tensor);
  }
  return tensor;
}

// Accumulates the gradients of a step and returns its loss.
inline at::Tensor plain_step(torch::nn::Sequential& model, const at::Tensor& input, const at::Tensor& target,
                             int num_micro_batches, std::int64_t step, const SimpleLoss& loss) {
  at::Tensor total;
  int index = 0;
  for (const MicroBatch& micro_batch : split_batch({input, target}, num_micro_batches)) {
    LayerRun run;
    run.step = step;
    run.micro_batch = index++;
    run.first_sample = micro_batch.first_sample;
    const at::Tensor output = plain_forward(model, micro_batch.tensors[0], run);
    const double weight = static_cast<double>(micro_batch.num_samples) / static_cast<double>(input.size(0));
    const at::Tensor value = loss(output, micro_batch.tensors[1]) * weight;
    value.backward();
    total = total.defined() ? total + value.detach() : value.detach();
  }
  return total;
}

}  // namespace gpipe::test
