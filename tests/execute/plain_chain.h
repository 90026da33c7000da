// The reference for chains of any layers: the same micro-batches one after the other, in the caller's thread, uncut.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/tie.h"
#include "tests/execute/rematerializations.h"

namespace gpipe::test {

class PlainChain {
 public:
  // Takes micro-batches, replicated inputs, loss reduction and seed from `options`, and nothing else.
  PlainChain(const LayerChain& chain, const PipelineOptions& options) : options_(options) {
    std::vector<std::string> names;
    for (int layer = 0; layer < chain.size(); ++layer) {
      layers_.push_back(chain.build(layer, options.seed()));
      names.push_back(chain.name(layer));
      model_.register_module(names.back(), layers_.back().module);
    }
    ties_ = bind_ties(chain.ties(), names, layers_);
  }

  torch::nn::Module& model() { return model_; }

  Tensors forward(Tensors tensors, LayerRun run) const {
    run.seed = options_.seed();
    for (const Layer& layer : layers_) {
      const LayerScope scope(run);
      tensors = layer.forward(std::move(tensors));
      ++run.layer;
    }
    return tensors;
  }

  at::Tensor train_step(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss) {
    const int num_micro_batches = options_.num_micro_batches();
    const auto input_batches = split_batch(inputs, num_micro_batches, options_.replicated_inputs());
    const auto target_batches = split_batch(targets, num_micro_batches);
    const auto num_samples = input_batches.back().first_sample + input_batches.back().num_samples;
    at::Tensor total;
    double weight = 0;  // of the mini-batch, if the loss has weights
    Tensors leaves = model_.parameters();
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) leaves.push_back(input);
    }
    Tensors earlier(leaves.size());
    LayerRun run;
    run.step = step_++;
    for (std::size_t index = 0; index < input_batches.size(); ++index) {
      run.micro_batch = static_cast<int>(index);
      run.first_sample = input_batches[index].first_sample;
      const LossValue given = loss(forward(input_batches[index].tensors, run), target_batches[index].tensors);
      at::Tensor value = given.loss;
      if (given.weight) {
        weight += given.weight->item<double>();
        for (std::size_t leaf = 0; index == 0 && leaf < leaves.size(); ++leaf) {
          earlier[leaf] = std::exchange(leaves[leaf].mutable_grad(), {});
        }
      } else if (options_.loss_reduction() == LossReduction::kMean) {
        value = value * (static_cast<double>(input_batches[index].num_samples) / static_cast<double>(num_samples));
      }
      value.backward();
      total = total.defined() ? total + value.detach() : value.detach();
    }
    add_tied_grads();
    if (weight == 0) return total;
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      at::Tensor& grad = leaves[leaf].mutable_grad();
      if (grad.defined()) grad = earlier[leaf].defined() ? earlier[leaf] + grad / weight : grad / weight;
    }
    return total / weight;
  }

 private:
  // See Note [Tied weights].
  void add_tied_grads() const {
    for (const Tie& tie : ties_) {
      at::Tensor& sum = tie.owner.weight.mutable_grad();
      for (const Tie::Use& user : tie.users) {
        if (!user.weight.grad().defined()) continue;
        sum = sum.defined() ? sum + user.weight.grad() : user.weight.grad();
      }
      forget_user_grads(tie);
    }
  }

  const PipelineOptions options_;
  std::vector<Layer> layers_;
  std::vector<Tie> ties_;
  torch::nn::Module model_;
  std::int64_t step_ = 0;
};

inline void expect_same_bits(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined()) return;
  EXPECT_TRUE(torch::equal(got, expected)) << what << ": got " << got << ", expected " << expected;
}

// Parameters, their gradients and buffers.
inline void expect_same_bits(const torch::nn::Module& got, const torch::nn::Module& expected) {
  const auto parameters = got.named_parameters();
  ASSERT_EQ(parameters.size(), expected.named_parameters().size());
  for (const auto& parameter : expected.named_parameters()) {
    expect_same_bits(parameters[parameter.key()], parameter.value(), parameter.key());
    expect_same_bits(parameters[parameter.key()].grad(), parameter.value().grad(), "gradient of " + parameter.key());
  }
  const auto buffers = got.named_buffers();
  ASSERT_EQ(buffers.size(), expected.named_buffers().size());
  for (const auto& buffer : expected.named_buffers()) {
    expect_same_bits(buffers[buffer.key()], buffer.value(), buffer.key());
  }
}

// One training problem. `make` gives a new, equal chain each time.
struct Problem {
  std::function<LayerChain()> make;
  Tensors inputs;
  Tensors targets;
  PipelineImpl::Loss loss;
  PipelineOptions options = PipelineOptions(1).num_micro_batches(4);
  int num_steps = 2;

  // New leaves, so that a run leaves nothing behind.
  Tensors fresh_inputs() const {
    Tensors fresh;
    for (const at::Tensor& input : inputs) {
      fresh.push_back(input.defined() ? input.detach().clone().requires_grad_(input.requires_grad()) : input);
    }
    return fresh;
  }
};

inline void expect_transparent(const Problem& problem, const PipelineOptions& options) {
  PlainChain plain(problem.make(), problem.options);
  Pipeline pipeline(problem.make(), options);
  const Tensors plain_inputs = problem.fresh_inputs();
  const Tensors inputs = problem.fresh_inputs();
  for (int step = 0; step < problem.num_steps; ++step) {
    const at::Tensor expected = plain.train_step(plain_inputs, problem.targets, problem.loss);
    const at::Tensor got = pipeline->train_step(inputs, problem.targets, problem.loss).loss;
    expect_same_bits(got, expected, "loss of step " + std::to_string(step));
  }
  expect_same_bits(*pipeline, plain.model());
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    if (!inputs[index].defined()) continue;
    expect_same_bits(inputs[index].grad(), plain_inputs[index].grad(), "gradient of input " + std::to_string(index));
  }
}

// With nothing dropped, every layer by itself, and as often as can be.
inline std::vector<std::vector<Rematerialization>> tried_rematerializations(const std::vector<int>& balance) {
  std::vector<std::vector<Rematerialization>> tried(3);
  for (const int num_layers : balance) {
    tried[1].push_back(layer_by_layer(num_layers));
    tried[2].push_back(all_the_way(num_layers));
  }
  return tried;
}

// Expects the bits of the plain run, gradients accumulated over the steps, for every number of stages, recompute mode
// and some rematerializations.
inline void expect_transparent(const Problem& problem) {
  at::set_num_threads(1);  // as the stages have
  const int num_layers = problem.make().size();
  for (int num_stages = 1; num_stages <= num_layers; ++num_stages) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      if (std::string(schedule) == "interleaved" && 2 * num_stages > num_layers) continue;
      for (const Recompute recompute : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
        SCOPED_TRACE(std::string(schedule) + ", K = " + std::to_string(num_stages) + ", recompute " + name(recompute));
        PipelineOptions options = problem.options;
        const int chunks = std::string(schedule) == "interleaved" ? 2 * num_stages : num_stages;
        std::vector<int> balance(chunks, num_layers / chunks);
        balance.back() += num_layers % chunks;
        options.num_stages(num_stages).schedule(schedule).recompute(recompute).balance(balance);
        for (const std::vector<Rematerialization>& rematerialization : tried_rematerializations(balance)) {
          SCOPED_TRACE("rematerialization " + (rematerialization.empty() ? "none" : to_text(rematerialization[0])));
          expect_transparent(problem, options.rematerialization(rematerialization));
        }
      }
    }
  }
}

}  // namespace gpipe::test
