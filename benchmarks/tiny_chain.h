// Tiny chain: 16 linear layers of 16 x 16 on micro-batches of 2 rows, M = 32. Its operations are so small that what a
// pipeline adds to them shows.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::benchmarks {

constexpr int kNumLayers = 16;
constexpr int kWidth = 16;
constexpr int kNumMicroBatches = 32;
constexpr int kRows = 2 * kNumMicroBatches;

using Linears = std::vector<std::shared_ptr<torch::nn::LinearImpl>>;

struct TinyBatch {
  at::Tensor input = torch::randn({kRows, kWidth});
  at::Tensor target = torch::randn({kRows, kWidth});
};

enum class Norms { kNone, kAfterEachLayer };

inline int num_stages(int num_workers, const std::string& schedule) {
  return num_workers * (schedule == "zb-v" ? 2 : 1);
}

inline Pipeline make_pipeline(int num_workers, const std::string& schedule, Norms norms = Norms::kNone) {
  LayerChain chain;
  for (int layer = 0; layer < kNumLayers; ++layer) {
    chain.add<torch::nn::Linear>(fmt::format("linear{}", layer), kWidth, kWidth);
    if (norms == Norms::kNone) continue;
    chain.add<nn::DeferredBatchNorm1d>(fmt::format("norm{}", layer), torch::nn::BatchNormOptions(kWidth));
  }
  const int stages = num_stages(num_workers, schedule);
  std::vector<int> balance(stages, chain.size() / stages);
  for (int stage = 0; stage < chain.size() % stages; ++stage) ++balance[stage];
  return Pipeline(chain,
                  PipelineOptions(num_workers).num_micro_batches(kNumMicroBatches).schedule(schedule).balance(balance));
}

inline Linears linears_of(const Pipeline& pipeline) {
  Linears linears;
  for (const auto& module : pipeline->children()) {
    linears.push_back(std::dynamic_pointer_cast<torch::nn::LinearImpl>(module));
  }
  return linears;
}

// One step in this thread. The layers of a stage share a graph, those of different stages do not.
inline at::Tensor plain_step(const Linears& linears, const std::vector<int>& layers_per_stage, const at::Tensor& input,
                             const at::Tensor& target) {
  at::Tensor total;
  const std::vector<at::Tensor> targets = target.tensor_split(kNumMicroBatches);
  int micro_batch = 0;
  for (at::Tensor tensor : input.tensor_split(kNumMicroBatches)) {
    std::vector<at::Tensor> stage_inputs;
    std::vector<at::Tensor> stage_outputs;
    auto linear = linears.begin();
    for (const int count : layers_per_stage) {
      if (linear != linears.begin()) tensor = tensor.detach().requires_grad_(true);
      stage_inputs.push_back(tensor);
      for (const auto end = linear + count; linear != end; ++linear) tensor = (*linear)->forward(tensor);
      stage_outputs.push_back(tensor);
    }
    const at::Tensor loss = at::mse_loss(tensor, targets[micro_batch++]) * (1.0 / kNumMicroBatches);
    loss.backward();
    for (std::size_t stage = layers_per_stage.size() - 1; stage > 0; --stage) {
      stage_outputs[stage - 1].backward(stage_inputs[stage].grad());
    }
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

inline at::Tensor pipelined_step(Pipeline& pipeline, const TinyBatch& batch) {
  return pipeline
      ->train_step(batch.input, batch.target,
                   [](const at::Tensor& output, const at::Tensor& wanted) { return at::mse_loss(output, wanted); })
      .loss;
}

}  // namespace gpipe::benchmarks
