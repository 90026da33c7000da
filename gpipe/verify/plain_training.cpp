#include "gpipe/verify/plain_training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>
#include <torch/autograd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/skip_store.h"
#include "gpipe/os/blas.h"

namespace gpipe::detail {

struct PlainTraining::Step {
  std::vector<MicroBatch> inputs;
  std::vector<MicroBatch> targets;
  std::vector<bool> requires_grad;  // of the inputs
  std::int64_t num_rows = 0;
  std::shared_ptr<StepRecorder> recorder;
  at::Tensor loss;
  double weight = 0;  // of the mini-batch, if the loss has weights
  bool has_weights = false;
  std::vector<Tensors> input_grads;  // by micro-batch
};

PlainTraining::PlainTraining(const LayerChain& chain, const PipelineOptions& options,
                             std::shared_ptr<RunRecorder> recorder)
    : options_(checked(options)),
      model_(
          face_, chain, options_.seed(), [](int) { return true; }, Model::Sharing::kAllowed),
      workers_((prepare_blas(1), 1)),
      recorder_(std::move(recorder)) {
  model_.bind_ties(chain);
  workers_.run(
      [&](int) {
        at::get_num_threads();
        omp_set_num_threads(options_.threads_per_stage());
      },
      [] {});
}

PlainTraining::~PlainTraining() {
  if (std::uncaught_exceptions() == 0) {
    try {
      recorder_->end(recorded_layers());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) the recording ends before its last weights
    }
  }
  model_.untie();
}

RecordedLayers PlainTraining::recorded_layers() const {
  RecordedLayers recorded;
  recorded.layers = model_.layers();
  recorded.stage_of = [](int) { return 0; };
  for (const Tie& tie : model_.ties()) {
    for (const Tie::Use& use : tie.users) recorded.known_leaves.push_back(use.weight);
  }
  return recorded;
}

void PlainTraining::train_step(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss) {
  const at::AutoGradMode grad_mode(true);
  Step step;
  step.inputs = split_batch(inputs, options_.num_micro_batches(), options_.replicated_inputs());
  step.targets = split_batch(targets, options_.num_micro_batches(), {}, "targets");
  step.num_rows = gpipe::num_rows(inputs, options_.replicated_inputs());
  for (const at::Tensor& input : inputs) step.requires_grad.push_back(input.defined() && input.requires_grad());
  step.recorder = recorder_->begin_step(recorded_layers(), inputs);
  const CallerState caller(/*with_grad=*/true);
  workers_.run([&](int) { caller.run([&] { run_step(loss, step); }); }, [] {});
  ++num_steps_;
}

void PlainTraining::run_step(const PipelineImpl::Loss& loss, Step& step) {
  LossCheck check(loss, options_.loss_reduction(), step.targets);
  const PipelineImpl::Loss kept = [&](const Tensors& outputs, const Tensors& targets) {
    check.keep(static_cast<int>(step.input_grads.size()), outputs);
    return loss(outputs, targets);
  };
  for (int micro_batch = 0; micro_batch < static_cast<int>(step.inputs.size()); ++micro_batch) {
    run_micro_batch(kept, micro_batch, step);
  }
  add_tied_grads();
  if (step.has_weights) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : face_.parameters()) {
      at::Tensor& grad = parameter.mutable_grad();
      if (grad.defined()) grad = step.weight == 0 ? at::Tensor() : grad / step.weight;
    }
    step.loss = step.weight == 0 ? at::zeros_like(step.loss) : step.loss / step.weight;
  }
  for (StepListener* listener : model_.listeners()) listener->end_step();
  if (step.recorder == nullptr) return;
  if (const auto compared = check.compare()) step.recorder->add(*compared);
  Tensors input_grads;
  for (std::size_t index = 0; index < step.requires_grad.size(); ++index) {
    Tensors rows;
    for (const Tensors& grads : step.input_grads) {
      if (grads[index].defined()) rows.push_back(grads[index]);
    }
    const bool is_whole = rows.size() == step.input_grads.size() && options_.replicated_inputs().empty();
    input_grads.push_back(is_whole ? at::cat(rows) : at::Tensor());
  }
  step.recorder->finish(step.loss, input_grads, recorded_layers());
}

void PlainTraining::run_micro_batch(const PipelineImpl::Loss& loss, int micro_batch, Step& step) {
  const MicroBatch& inputs = step.inputs[static_cast<std::size_t>(micro_batch)];
  LayerRun run;
  run.seed = options_.seed();
  run.step = num_steps_;
  run.micro_batch = micro_batch;
  run.first_sample = inputs.first_sample;
  Tensors tensors = inputs.tensors;
  const std::shared_ptr<Boundary> boundary = Boundary::enter(tensors, step.requires_grad);
  SkipMap skips;
  const SkipScope scope(skips);
  const Tensors outputs = run_layers(std::move(tensors), run, step.recorder.get());
  run.layer = model_.num_layers();
  const auto call_loss = [&](const Tensors& given) {
    const LayerScope layer_scope(run);
    const LossValue value = loss(given, step.targets[static_cast<std::size_t>(micro_batch)].tensors);
    step.has_weights = value.weight.has_value();
    if (step.has_weights) step.weight += value.weight->item<double>();
    if (step.has_weights || options_.loss_reduction() == LossReduction::kSum) return value.loss;
    return value.loss * (static_cast<double>(inputs.num_samples) / static_cast<double>(step.num_rows));
  };
  if (step.recorder != nullptr) {
    step.recorder->probe(run, outputs, [&](const Tensors& given) { return Tensors{call_loss(given)}; });
  }
  const at::Tensor value = call_loss(outputs);
  if (step.recorder != nullptr) step.recorder->left(/*stage=*/0, run, {value});
  step.loss = step.loss.defined() ? step.loss + value.detach() : value.detach();
  value.backward();
  step.input_grads.push_back(boundary->take_grads());
}

Tensors PlainTraining::run_layers(Tensors tensors, LayerRun& run, StepRecorder* recorder) const {
  if (recorder != nullptr) recorder->entered(/*stage=*/0, run, tensors);
  for (const ChainLayer& layer : model_.layers()) {
    run.layer = layer.index;
    if (recorder != nullptr) recorder->probe(run, tensors, layer.layer.forward);
    const LayerScope scope(run);
    tensors = layer.layer.forward(std::move(tensors));
    if (recorder != nullptr) recorder->left(/*stage=*/0, run, tensors);
  }
  return tensors;
}

// See Note [Tied weights].
void PlainTraining::add_tied_grads() const {
  const at::NoGradGuard no_grad;
  for (const Tie& tie : model_.ties()) {
    at::Tensor& sum = tie.owner.weight.mutable_grad();
    for (const Tie::Use& user : tie.users) {
      const at::Tensor& grad = user.weight.grad();
      if (!grad.defined()) continue;
      sum = sum.defined() ? sum + grad : grad;
    }
    forget_user_grads(tie);
  }
}

}  // namespace gpipe::detail
