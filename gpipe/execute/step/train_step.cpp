// train_step: forward, loss and backward of a mini-batch.
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/step/step.h"

namespace gpipe::detail {
namespace {

// Adds to the gradients of the inputs, and of whatever they were computed from.
void backward_into(const Tensors& inputs, const Tensors& input_grads, std::optional<double> weight) {
  Tensors roots;
  Tensors grads;
  for (std::size_t index = 0; index < std::min(inputs.size(), input_grads.size()); ++index) {
    if (!input_grads[index].defined() || !inputs[index].defined() || weight.value_or(1) == 0) continue;
    const at::Tensor grad = input_grads[index].to(inputs[index].device());
    roots.push_back(inputs[index]);
    grads.push_back(weight ? grad / *weight : grad);
  }
  if (!roots.empty()) torch::autograd::backward(roots, grads);
}

}  // namespace

StepResult train_step(Engine& engine, const Tensors& inputs, const Tensors& targets, const UserLoss& loss) {
  const at::AutoGradMode grad_mode(true);
  std::optional<CallLock::Scope> lock(std::in_place, engine.calls(), "train_step");
  StepCall call = engine.make_call("train_step");
  call.needs_grad = true;
  std::vector<MicroBatch> target_batches;
  MiniBatch batch = engine.make_batch(std::move(call), inputs, &targets, &target_batches);

  Group& group = engine.group();
  WeighedLoss weighed(loss, target_batches, batch, engine.options(),
                      group.world().size == 1 ? WeighedLoss::NonFinite::kThrow : WeighedLoss::NonFinite::kRemember);
  StepLoss stage_loss;
  stage_loss.call = [&](int micro_batch, const Tensors& outputs) { return weighed(micro_batch, outputs); };
  stage_loss.has_weights = [&] { return weighed.has_weights(); };
  stage_loss.is_checked = engine.options().check_loss();
  Step step(engine, std::move(batch), StepMode::kTogether, std::move(stage_loss));
  StepResult result;
  try {
    result.timeline = step.run(Phase::kAll);
  } catch (const ActionError& error) {
    error.rethrow_if<NonFiniteLossError>();
    throw;
  }
  LossParts parts;
  if (step.last() != nullptr) parts = group.failing([&] { return weighed.parts(step.last()->results()); });
  const std::string non_finite = step.share(result, parts, weighed.non_finite());
  if (!non_finite.empty()) {
    step.roll_back();
    throw NonFiniteLossError(non_finite);
  }
  if (result.weight) step.divide_gradients(*result.weight);
  for (std::size_t stage = 0; stage < result.memory.size(); ++stage) {
    const int worker = step.schedule().worker_of_stage[stage];
    result.timeline.workers[worker].peak_bytes += result.memory[stage].peak_bytes;
  }
  const Tensors input_grads = step.input_grads();
  lock.reset();  // the inputs may come out of this very pipeline
  backward_into(inputs, input_grads, result.weight);
  return result;
}

}  // namespace gpipe::detail
