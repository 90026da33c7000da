// Training runs of the test models, plain and pipelined, and what they leave.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/stage_optimizers.h"
#include "gpipe/schedule/registry.h"
#include "tests/execute/plain_chain.h"
#include "tests/execute/test_models.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {

inline constexpr int kNumSteps = 5;
inline constexpr int kNumMicroBatches = 4;
inline constexpr std::uint64_t kSeed = 7;

// Everything that training leaves.
struct Trained {
  std::map<std::string, at::Tensor> tensors;  // parameters, buffers and the losses
};

inline void expect_same_bits(const Trained& got, const Trained& expected) {
  expect_same_values(got.tensors, expected.tensors);
}

// Adds parameters and buffers.
inline void add_state(const torch::nn::Module& model, Trained& trained) {
  for (const auto& item : model.named_parameters()) trained.tensors[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) trained.tensors[item.key()] = item.value();
}

inline torch::optim::AdamOptions adam_options() { return torch::optim::AdamOptions(0.01); }

// In this thread, as the replicas of a pipeline would, if there are several.
inline Trained train_plainly(const TestModel& model, std::int64_t num_samples, int num_micro_batches = kNumMicroBatches,
                             int num_replicas = 1) {
  PlainChain plain(model.chain, PipelineOptions(1).num_micro_batches(num_micro_batches).seed(kSeed), num_replicas);
  torch::optim::Adam optimizer(plain.model().parameters(), adam_options());
  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    trained.tensors["loss" + std::to_string(step)] = plain.train_step(
        {model.input.narrow(0, 0, num_samples).clone()}, {model.target.narrow(0, 0, num_samples)}, loss_of(model));
    optimizer.step();
  }
  add_state(plain.model(), trained);
  return trained;
}

// The update comes behind every other step, and in the others as soon as a stage has its gradients. `balance` gets the
// layers per stage.
inline Trained train_pipelined(const TestModel& model, std::int64_t num_samples, PipelineOptions options,
                               std::vector<int>* balance = nullptr) {
  Pipeline pipeline(model.chain, options.seed(kSeed));
  StageOptimizers<torch::optim::Adam> optimizer(pipeline, adam_options());
  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor input = model.input.narrow(0, 0, num_samples).clone();
    const at::Tensor target = model.target.narrow(0, 0, num_samples);
    const bool is_updated_behind = step % 2 == 0;
    const StepResult result = is_updated_behind ? pipeline->train_step(input, target, model.loss)
                                                : optimizer.train_step(input, target, model.loss);
    if (is_updated_behind) optimizer.step();
    trained.tensors["loss" + std::to_string(step)] = result.loss;
  }
  add_state(*pipeline, trained);
  if (balance != nullptr) *balance = pipeline->layers_per_stage();
  return trained;
}

inline std::vector<int> even_balance(int num_layers, int num_stages) {
  std::vector<int> balance;
  for (int stage = 0; stage < num_stages; ++stage) {
    balance.push_back(num_layers / num_stages + (stage < num_layers % num_stages ? 1 : 0));
  }
  return balance;
}

// With the schedule's own number of stages a worker.
inline PipelineOptions options_for(const TestModel& model, int num_workers, const std::string& schedule = "1f1b",
                                   Recompute recompute = Recompute::kNever) {
  return PipelineOptions(num_workers)
      .num_micro_batches(kNumMicroBatches)
      .schedule(schedule)
      .recompute(recompute)
      .seed(kSeed)
      .balance(even_balance(model.chain.size(), find_schedule(schedule).default_chunks * num_workers));
}

inline TestModel make_model(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mlp") return mlp();
  if (name == "cnn") return cnn();
  if (name == "transformer") return transformer();
  if (name == "padded") return padded_transformer();
  return unet();
}

}  // namespace gpipe::test
