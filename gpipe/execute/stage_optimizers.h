// StageOptimizers: libtorch's own optimizers, one for each stage, which update their stages at the same time.
#pragma once

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/execute/pipeline.h"

namespace gpipe {

namespace detail {

// The optimizers of the stages. Between steps the state of all parameters is in the optimizer that the user has; a part
// has that of its stage while it updates it.
//
// Thread-compatible.
class StageUpdates {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  // Makes an optimizer of the same kind.
  using MakePart = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  StageUpdates(Pipeline pipeline, MakePart make_part);
  ~StageUpdates();
  StageUpdates(const StageUpdates&) = delete;
  StageUpdates& operator=(const StageUpdates&) = delete;

  // One step of all parameters of `whole`; false, without any, if there are no stages yet. Throws what an optimizer
  // throws; each stage is then updated or not.
  bool step(torch::optim::Optimizer& whole);

  // A step of the pipeline, `train`, that updates the stages.
  StepResult train_step(torch::optim::Optimizer& whole, const std::function<StepResult(PipelineImpl&)>& train);

 private:
  struct Part;
  class Lent;

  // Gives each part the options and the states of its parameters; the states are its own while what is returned lives.
  std::vector<std::unique_ptr<Lent>> lend(torch::optim::Optimizer& whole);
  void make_parts(torch::optim::Optimizer& whole);
  void update(int stage) const;
  void book(torch::optim::Optimizer& whole);

  Pipeline pipeline_;
  const MakePart make_part_;
  std::vector<Part> parts_;
  std::vector<std::vector<at::Tensor>> parameters_;  // that the parts are made for, by group
  std::size_t num_states_ = 0;                       // after the last step
};

}  // namespace detail

// An optimizer of libtorch over the parameters of a pipeline. It is used like that optimizer, and is one: learning rate
// schedulers, checkpoints, parameter groups and zero_grad work as they do with it, and the weights get the same bits.
// But step() updates every stage on the stage's own worker, so that it takes as long as the largest of them.
//
//     gpipe::StageOptimizers<torch::optim::AdamW> optimizer(pipeline, torch::optim::AdamWOptions(1e-3));
//
// With nothing to do between the backward and the update, such as clip_grad_norm_, its own train_step is a train_step
// and a step() in one: each stage is updated as soon as its own gradients are complete, while others still work.
//
// The update of a parameter must not depend on other parameters: that of LBFGS does. Its state is booked on the stages
// when it is made, see PipelineImpl::book. step() throws CallError while the pipeline is at work.
//
// Thread-compatible.
template <typename Optimizer>
class StageOptimizers : public Optimizer {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Optimizer>,
                "gpipe::StageOptimizers is made of an optimizer of libtorch, such as torch::optim::AdamW");
  static_assert(!std::is_base_of_v<torch::optim::LBFGS, Optimizer>,
                "LBFGS updates each parameter by what all others are, so there cannot be one for each stage; give "
                "torch::optim::LBFGS the parameters of the pipeline instead");

 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  // Over all parameters of the pipeline.
  template <typename Options>
  StageOptimizers(const Pipeline& pipeline, const Options& options)
      : StageOptimizers(pipeline, Groups{torch::optim::OptimizerParamGroup(pipeline->parameters())}, options) {}

  // Over some of them, in groups with options of their own.
  template <typename Options>
  StageOptimizers(const Pipeline& pipeline, const Groups& groups, const Options& options)
      : Optimizer(groups, options),
        updates_(pipeline, [options](Groups part) { return std::make_unique<Optimizer>(std::move(part), options); }) {}

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode with_grad(true);
      loss = closure();
    }
    if (!updates_.step(*this)) Optimizer::step();
    return loss;
  }

  // Takes what PipelineImpl::train_step takes. The update is an action of the schedule, U; it comes at the end for all
  // stages if the loss has weights, with check_loss, and with replicas, where no gradient is complete before. If it
  // throws, stages may be updated or not: go on from a checkpoint. All ranks call it.
  StepResult train_step(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss) {
    return updates_.train_step(*this,
                               [&](PipelineImpl& pipeline) { return pipeline.train_step(inputs, targets, loss); });
  }
  template <typename Input, typename Target, typename AnyLoss>
  StepResult train_step(const Input& input, const Target& target, const AnyLoss& loss) {
    return updates_.train_step(*this, [&](PipelineImpl& pipeline) { return pipeline.train_step(input, target, loss); });
  }

 private:
  detail::StageUpdates updates_;
};

}  // namespace gpipe
