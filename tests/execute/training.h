// Training runs of the test models, plain and pipelined, and what they leave.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"
#include "tests/execute/test_models.h"

namespace gpipe::test {

inline constexpr int kNumSteps = 5;
inline constexpr int kNumMicroBatches = 4;
inline constexpr std::uint64_t kSeed = 7;

// Everything that training leaves.
struct Trained {
  std::map<std::string, at::Tensor> tensors;  // parameters, buffers and the losses
};

inline void expect_same_bits(const Trained& got, const Trained& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    ASSERT_TRUE(got.tensors.count(name)) << name;
    EXPECT_TRUE(torch::equal(got.tensors.at(name), tensor))
        << name << " differs by " << (got.tensors.at(name) - tensor).abs().max().item<double>();
  }
}

inline std::unique_ptr<torch::optim::Optimizer> adam(const Tensors& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
}

// Plain gradient accumulation in this thread. Knows nothing of stages: it runs the chain's layers one after the other,
// and for a tied weight it adds up the gradients of its layers at the end of the step. The gradients of replicas, which
// have shares of the samples, are added up in order.
inline Trained train_plainly(const TestModel& model, std::int64_t num_samples, int num_micro_batches = kNumMicroBatches,
                             int num_replicas = 1) {
  std::vector<Layer> layers;
  std::map<std::string, at::Tensor> parameters;
  std::map<std::string, at::Tensor> buffers;
  for (int index = 0; index < model.chain.size(); ++index) {
    layers.push_back(model.chain.build(index, kSeed));
    for (const auto& item : layers.back().module->named_parameters()) {
      parameters[model.chain.name(index) + "." + item.key()] = item.value();
    }
    for (const auto& item : layers.back().module->named_buffers()) {
      buffers[model.chain.name(index) + "." + item.key()] = item.value();
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> ties;
  for (const TieNames& tie : model.chain.ties()) {
    ties.emplace_back(parameters.at(tie.owner), parameters.at(tie.user));
    parameters.erase(tie.user);
    ties.back().second.set_data(ties.back().first.detach());
  }
  Tensors values;
  for (const auto& [name, parameter] : parameters) values.push_back(parameter);
  const auto optimizer = adam(values);

  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    at::Tensor total;
    int micro_batch = 0;
    double weight = 0;  // of the mini-batch, if the loss has weights
    Tensors sums(values.size());
    for (const MicroBatch& share : split_rows(num_samples, num_replicas)) {
      const Tensors rows = {model.input.narrow(0, share.first_sample, share.num_samples),
                            model.target.narrow(0, share.first_sample, share.num_samples)};
      for (const MicroBatch& part : split_batch(rows, num_micro_batches)) {
        LayerRun run;
        run.seed = kSeed;
        run.step = step;
        run.micro_batch = micro_batch++;
        run.first_sample = share.first_sample + part.first_sample;
        Tensors tensors{part.tensors[0].clone()};
        for (const Layer& layer : layers) {
          const LayerScope scope(run);
          tensors = layer.forward(std::move(tensors));
          ++run.layer;
        }
        const LossValue value = model.loss(tensors.front(), part.tensors[1]);
        at::Tensor loss = value.loss;
        if (value.weight) {
          weight += value.weight->item<double>();
        } else {
          loss = loss * (static_cast<double>(part.num_samples) / static_cast<double>(num_samples));
        }
        loss.backward();
        total = total.defined() ? total + loss.detach() : loss.detach();
      }
      for (auto& [owner, user] : ties) {
        owner.mutable_grad().add_(user.grad());
        user.mutable_grad().reset();
      }
      for (std::size_t index = 0; index < values.size(); ++index) {
        at::Tensor& grad = values[index].mutable_grad();
        sums[index] = sums[index].defined() ? sums[index] + grad : grad;
        grad.reset();
      }
    }
    for (std::size_t index = 0; index < values.size(); ++index) {
      values[index].mutable_grad() = weight > 0 ? sums[index] / weight : sums[index];
    }
    if (weight > 0) total = total / weight;
    for (const Layer& layer : layers) {
      if (auto* listener = dynamic_cast<StepListener*>(layer.module.get())) listener->end_step();
    }
    optimizer->step();
    trained.tensors["loss" + std::to_string(step)] = total;
  }
  trained.tensors.insert(parameters.begin(), parameters.end());
  trained.tensors.insert(buffers.begin(), buffers.end());
  return trained;
}

// `balance` gets the layers per stage.
inline Trained train_pipelined(const TestModel& model, std::int64_t num_samples, PipelineOptions options,
                               std::vector<int>* balance = nullptr) {
  Pipeline pipeline(model.chain, options.seed(kSeed));
  const auto optimizer = adam(pipeline->parameters());
  Trained trained;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer->zero_grad();
    const StepResult result = pipeline->train_step(model.input.narrow(0, 0, num_samples).clone(),
                                                   model.target.narrow(0, 0, num_samples), model.loss);
    optimizer->step();
    trained.tensors["loss" + std::to_string(step)] = result.loss;
  }
  for (const auto& item : pipeline->named_parameters()) trained.tensors[item.key()] = item.value();
  for (const auto& item : pipeline->named_buffers()) trained.tensors[item.key()] = item.value();
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

inline TestModel make_model(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mlp") return mlp();
  if (name == "cnn") return cnn();
  if (name == "transformer") return transformer();
  if (name == "padded") return padded_transformer();
  return unet();
}

}  // namespace gpipe::test
