#include "gpipe/execute/stage.h"

#include <fmt/format.h>
#include <torch/autograd.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"

namespace gpipe {
namespace {

std::vector<bool> flags(const Tensors& tensors) {
  std::vector<bool> requires_grad;
  for (const at::Tensor& tensor : tensors) requires_grad.push_back(tensor.defined() && tensor.requires_grad());
  return requires_grad;
}

Tensors detached(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.defined() ? tensor.detach() : tensor);
  return result;
}

// The tensors as leaves of a new graph. They share memory with the sender's: nothing is copied.
Tensors leaves(const Tensors& tensors, const std::vector<bool>& requires_grad) {
  Tensors result = detached(tensors);
  for (std::size_t index = 0; index < result.size(); ++index) {
    if (requires_grad[index]) result[index].requires_grad_(true);
  }
  return result;
}

}  // namespace

Stage::Stage(std::vector<StageLayer> layers, bool is_first, bool is_last, std::function<bool(int)> recomputed)
    : layers_(std::move(layers)), is_first_(is_first), is_last_(is_last), recomputed_(std::move(recomputed)) {}

void Stage::begin_step(const StepSettings& settings) {
  end_step();
  settings_ = &settings;
  const std::size_t count = settings.micro_batches.size();
  kept_.resize(count);
  results_.resize(is_last_ ? count : 0);
  input_grads_.resize(is_first_ ? count : 0);
}

void Stage::end_step() {
  settings_ = nullptr;
  at_work_ = nullptr;
  kept_.clear();
  output_requires_grad_.clear();
  results_.clear();
  output_grads_.clear();
  input_grads_.clear();
}

Tensors Stage::run(int micro_batch, Tensors tensors, bool recomputing) {
  LayerRun run;
  run.seed = settings_->seed;
  run.step = settings_->step;
  run.micro_batch = micro_batch;
  run.first_sample = settings_->micro_batches[micro_batch].first_sample;
  run.recomputing = recomputing;
  for (const StageLayer& layer : layers_) {
    run.layer = layer.index;
    at_work_ = &layer;
    const LayerScope scope(run);
    tensors = layer.layer.forward(std::move(tensors));
  }
  at_work_ = nullptr;
  return tensors;
}

std::string Stage::where() const {
  return at_work_ == nullptr ? "" : fmt::format("layer {} ({})", at_work_->index, at_work_->name);
}

Tensors Stage::roots(int micro_batch, const Tensors& outputs) const {
  if (!is_last_ || !settings_->loss) return outputs;
  return {settings_->loss(micro_batch, outputs)};
}

void Stage::check(const Packet& packet, int micro_batch) const {
  if (packet.step == settings_->step && packet.micro_batch == micro_batch) return;
  throw Error(fmt::format("received micro-batch {} of step {}, expected micro-batch {} of step {}; please report this",
                          packet.micro_batch, packet.step, micro_batch, settings_->step));
}

void Stage::forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  Kept kept;
  if (is_first_) {
    kept.inputs = leaves(settings_->micro_batches[micro_batch].tensors, settings_->input_requires_grad);
  } else {
    check(inputs.front(), micro_batch);
    kept.inputs = leaves(inputs.front().tensors, inputs.front().requires_grad);
  }
  const bool again = settings_->with_grad && recomputed_(micro_batch);
  // Whether an output needs a gradient is only known from a graph. The step's first forward makes one, even if it is
  // dropped at once; the others follow it.
  const bool learn = settings_->with_grad && output_requires_grad_.empty();
  const at::AutoGradMode grad_mode(settings_->with_grad && (!again || learn));
  Tensors made = roots(micro_batch, run(micro_batch, kept.inputs, false));
  if (learn) output_requires_grad_ = flags(made);
  if (is_last_) {
    results_[micro_batch] = detached(made);
  } else {
    outputs.front() = {settings_->step, micro_batch, detached(made),
                       settings_->with_grad ? output_requires_grad_ : std::vector<bool>(made.size(), false)};
  }
  if (!settings_->with_grad) return;
  if (!again) kept.outputs = std::move(made);
  kept_[micro_batch] = std::move(kept);
}

void Stage::recompute(int micro_batch) {
  Kept& kept = kept_[micro_batch];
  const at::AutoGradMode grad_mode(true);
  kept.outputs = roots(micro_batch, run(micro_batch, kept.inputs, true));
}

void Stage::backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs) {
  Kept kept = std::exchange(kept_[micro_batch], {});
  Tensors grads;
  if (!is_last_) {
    check(inputs.front(), micro_batch);
    grads = std::move(inputs.front().tensors);
  } else if (settings_->loss) {
    grads = {at::Tensor()};  // of a scalar: one
  } else {
    grads = output_grads_[micro_batch];
  }
  Tensors backward_roots;
  Tensors backward_grads;
  for (std::size_t index = 0; index < kept.outputs.size(); ++index) {
    const at::Tensor& output = kept.outputs[index];
    const bool is_scalar_loss = is_last_ && settings_->loss;
    if (!output.defined() || !output.requires_grad() || (!grads[index].defined() && !is_scalar_loss)) continue;
    backward_roots.push_back(output);
    backward_grads.push_back(grads[index]);
  }
  if (!backward_roots.empty()) torch::autograd::backward(backward_roots, backward_grads);
  Tensors input_grads;
  for (const at::Tensor& input : kept.inputs) input_grads.push_back(input.defined() ? input.grad() : at::Tensor());
  if (is_first_) {
    input_grads_[micro_batch] = std::move(input_grads);
  } else {
    outputs.front() = {settings_->step, micro_batch, std::move(input_grads), {}};
  }
}

}  // namespace gpipe
