// The one oracle of training in the tests: plain gradient accumulation over the same micro-batches, one after the
// other, in the caller's thread. It knows nothing of stages: it runs the layers of a chain in their order, each in its
// random stream, adds up the gradients of tied weights at the end of a step, and divides losses that have weights once.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/step_listener.h"
#include "gpipe/model/tie.h"
#include "tests/execute/rematerializations.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {

class PlainChain {
 public:
  // Takes micro-batches, replicated inputs, loss reduction and seed from `options`, and nothing else. Each of the
  // replicas has a share of the samples, which is cut into that many micro-batches.
  PlainChain(const LayerChain& chain, const PipelineOptions& options, int num_replicas = 1)
      : options_(options), num_replicas_(num_replicas) {
    for (int layer = 0; layer < chain.size(); ++layer) layers_.push_back(chain.build(layer, options.seed()));
    ties_ = detail::bind_ties(chain, layers_);
    for (int layer = 0; layer < chain.size(); ++layer) {
      if (chain.is_part(layer)) {
        register_part(model_, *layers_[layer].module);
      } else {
        register_nested(model_, chain.name(layer), layers_[layer].module);
      }
    }
  }

  torch::nn::Module& model() { return model_; }
  // Of all layers; model() has those of parts only as tensors.
  void train(bool on) const {
    for (const Layer& layer : layers_) layer.module->train(on);
  }

  Tensors forward(Tensors tensors, LayerRun run) const {
    run.seed = options_.seed();
    for (const Layer& layer : layers_) {
      const LayerScope scope(run);
      tensors = layer.forward(std::move(tensors));
      ++run.layer;
    }
    return tensors;
  }

  // Adds the gradients of a mini-batch to those that are there, and gives its loss. An optimizer over the parameters of
  // model() is the caller's.
  at::Tensor train_step(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss) {
    Step step;
    step.run.step = num_steps_++;
    step.num_samples = num_rows(inputs, options_.replicated_inputs());
    step.leaves = model_.parameters();
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) step.leaves.push_back(input);
    }
    if (num_replicas_ == 1) {
      run_share(inputs, targets, loss, step);
      add_tied_grads();
    } else {
      run_replicas(inputs, targets, loss, step);
    }
    if (!step.earlier.empty()) add_earlier_grads(step);
    for (const Layer& layer : layers_) {
      for (const auto& module : layer.module->modules(/*include_self=*/true)) {
        if (auto* listener = dynamic_cast<StepListener*>(module.get())) listener->end_step();
      }
    }
    return step.weight > 0 ? step.loss / step.weight : step.loss;
  }

 private:
  struct Step {
    LayerRun run;  // of the next micro-batch
    std::int64_t num_samples = 0;
    std::int64_t first_sample = 0;  // of the replica's share
    at::Tensor loss;
    double weight = 0;  // of the mini-batch, if the loss has weights
    Tensors leaves;     // what gets gradients
    Tensors earlier;    // the gradients that were there, while they are set aside
  };

  // "block.0.linear" is the child "linear" of the child "0" of the child "block", as in a pipeline.
  static void register_nested(torch::nn::Module& parent, const std::string& name,
                              const std::shared_ptr<torch::nn::Module>& module) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) {
      parent.register_module(name, module);
      return;
    }
    const std::string outer = name.substr(0, dot);
    const auto children = parent.named_children();
    const auto child = children.contains(outer) ? children[outer]
                                                : parent.register_module(outer, std::make_shared<torch::nn::Module>());
    register_nested(*child, name.substr(dot + 1), module);
  }

  // The tensors of a part under their names, in modules of which there is one for all parts.
  static void register_part(torch::nn::Module& into, const torch::nn::Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      into.register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (const auto& item : part.named_buffers(/*recurse=*/false)) into.register_buffer(item.key(), item.value());
    for (const auto& item : part.named_children()) {
      const auto children = into.named_children();
      const auto child = children.contains(item.key())
                             ? children[item.key()]
                             : into.register_module(item.key(), std::make_shared<torch::nn::Module>());
      register_part(*child, *item.value());
    }
  }

  static Tensors take_grads(Step& step) {
    Tensors grads;
    for (at::Tensor& leaf : step.leaves) grads.push_back(std::exchange(leaf.mutable_grad(), {}));
    return grads;
  }
  static at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& added) {
    if (!sum.defined() || !added.defined()) return sum.defined() ? sum : added;
    return sum + added;
  }

  // The micro-batches of one replica, one after the other.
  void run_share(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss, Step& step) const {
    const auto input_batches = split_batch(inputs, options_.num_micro_batches(), options_.replicated_inputs());
    const auto target_batches = split_batch(targets, options_.num_micro_batches());
    for (std::size_t index = 0; index < input_batches.size(); ++index) {
      step.run.first_sample = step.first_sample + input_batches[index].first_sample;
      const LossValue given = loss(forward(input_batches[index].tensors, step.run), target_batches[index].tensors);
      at::Tensor value = given.loss;
      if (given.weight) {
        step.weight += given.weight->item<double>();
        if (step.earlier.empty()) step.earlier = take_grads(step);
      } else if (options_.loss_reduction() == LossReduction::kMean) {
        value = value * (static_cast<double>(input_batches[index].num_samples) / static_cast<double>(step.num_samples));
      }
      value.backward();
      step.loss = step.loss.defined() ? step.loss + value.detach() : value.detach();
      ++step.run.micro_batch;
    }
  }

  // The replicas' gradients are added up in their order.
  void run_replicas(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss, Step& step) const {
    step.earlier = take_grads(step);
    Tensors sums(step.leaves.size());
    const auto target_shares = split_batch(targets, num_replicas_);
    std::size_t replica = 0;
    for (const MicroBatch& share : split_batch(inputs, num_replicas_, options_.replicated_inputs())) {
      step.first_sample = share.first_sample;
      run_share(share.tensors, target_shares[replica++].tensors, loss, step);
      add_tied_grads();
      const Tensors grads = take_grads(step);
      for (std::size_t leaf = 0; leaf < sums.size(); ++leaf) sums[leaf] = sum_of(sums[leaf], grads[leaf]);
    }
    for (std::size_t leaf = 0; leaf < sums.size(); ++leaf) step.leaves[leaf].mutable_grad() = sums[leaf];
  }

  static void add_earlier_grads(Step& step) {
    for (std::size_t leaf = 0; leaf < step.leaves.size(); ++leaf) {
      at::Tensor& grad = step.leaves[leaf].mutable_grad();
      if (grad.defined() && step.weight > 0) grad = grad / step.weight;
      grad = sum_of(step.earlier[leaf], grad);
    }
  }

  // See Note [Tied weights].
  void add_tied_grads() const {
    for (const detail::Tie& tie : ties_) {
      at::Tensor& sum = tie.owner.weight.mutable_grad();
      for (const detail::Tie::Use& user : tie.users) sum = sum_of(sum, user.weight.grad());
      detail::forget_user_grads(tie);
    }
  }

  const PipelineOptions options_;
  const int num_replicas_;
  std::vector<Layer> layers_;
  std::vector<detail::Tie> ties_;
  torch::nn::Module model_;
  std::int64_t num_steps_ = 0;
};

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
