// train_step: forward, the loss by micro-batch, and backward of a mini-batch.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/execute/group/loss_parts.h"
#include "gpipe/execute/step/calls.h"
#include "gpipe/execute/step/loss_check.h"
#include "gpipe/execute/step/stage_work.h"
#include "gpipe/execute/step/step.h"
#include "gpipe/model/plain_values.h"

namespace gpipe::detail {
namespace {

double checked_weight(const at::Tensor& weight) {
  if (!weight.defined()) throw InvalidArgument("the weight of the loss is an undefined tensor; give a number");
  if (weight.numel() != 1) {
    throw InvalidArgument(
        fmt::format("the weight of the loss has the shape [{}], but is to be one number; add it up, with sum()",
                    fmt::join(weight.sizes(), ", ")));
  }
  const double value = weight.item<double>();
  if (std::isfinite(value) && value >= 0) return value;
  throw InvalidArgument(fmt::format(
      "the weight of the loss is {}, but is to be finite and not negative; count what the sum is over", value));
}

// As at::stack does. See Note [Without operations].
at::Tensor stacked(const Tensors& values) {
  const auto is_plain_float = [](const at::Tensor& value) {
    return value.dim() == 0 && plain_values<const float>(value) != nullptr;
  };
  if (!std::all_of(values.begin(), values.end(), is_plain_float)) return at::stack(values);
  at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, values.front().options());
  auto* const plain = result.data_ptr<float>();
  std::transform(values.begin(), values.end(), plain,
                 [](const at::Tensor& value) { return *plain_values<const float>(value); });
  return result;
}

// Runs the loss of each micro-batch, scales it unless it has weights of its own, and puts the parts together. Confined
// to the last stage's worker during a step; the caller's after it.
class MicroBatchLoss {
 public:
  // What happens when a loss is not finite and the options ask for a check: it is thrown at once, or only remembered,
  // because other ranks are in the middle of the step.
  enum class NonFinite { kThrow, kRemember };

  // REQUIRES: `loss`, `targets` and `options` outlive it.
  MicroBatchLoss(const UserLoss& loss, const std::vector<MicroBatch>& targets, const MiniBatch& batch,
                 const PipelineOptions& options, NonFinite non_finite)
      : loss_(loss),
        targets_(targets),
        first_sample_(batch.first_sample),
        num_samples_(batch.num_samples),
        options_(options),
        throws_(non_finite == NonFinite::kThrow),
        weights_(targets.size()),
        metrics_(targets.size()) {}

  at::Tensor operator()(int micro_batch, const Tensors& outputs) {
    LossValue value = loss_(outputs, targets_on(micro_batch, outputs));
    check(micro_batch, value.loss);
    note_weight(micro_batch, value.weight);
    for (auto& [name, metric] : value.metrics) metric = metric.detach();
    check_names(micro_batch, value.metrics);
    metrics_[micro_batch] = std::move(value.metrics);
    return has_weights() ? value.loss : scale(micro_batch, value.loss);
  }

  // Whether it gave any, so far.
  bool has_weights() const { return has_weights_.value_or(false); }
  // What was remembered; empty: all were finite.
  const std::string& non_finite() const { return non_finite_; }

  // Of what the calls above have returned.
  LossParts parts(const std::vector<Tensors>& losses) const {
    LossParts result;
    Tensors scaled;
    scaled.reserve(losses.size());
    for (const Tensors& loss : losses) scaled.push_back(loss.front());
    result.losses = stacked(scaled);
    if (has_weights()) result.weights = torch::tensor(weights_, at::kDouble);
    for (const auto& [name, first] : metrics_.front()) {
      Tensors parts;
      for (std::size_t micro_batch = 0; micro_batch < metrics_.size(); ++micro_batch) {
        const at::Tensor& metric = metrics_[micro_batch].at(name);
        parts.push_back(first.dim() == 0 ? scale(static_cast<int>(micro_batch), metric) : metric);
      }
      const bool is_scalar = first.dim() == 0;
      result.metrics[name] = {is_scalar ? at::stack(parts) : at::cat(parts, 0), is_scalar};
    }
    return result;
  }

 private:
  // Where the outputs are.
  Tensors targets_on(int micro_batch, const Tensors& outputs) const {
    Tensors targets = targets_[micro_batch].tensors;
    if (outputs.empty() || !outputs.front().defined()) return targets;
    for (at::Tensor& target : targets) {
      if (target.defined()) target = target.to(outputs.front().device());
    }
    return targets;
  }

  // The same names for every micro-batch; the first comes first.
  void check_names(int micro_batch, const std::map<std::string, at::Tensor>& metrics) const {
    if (micro_batch == 0) return;
    const auto& first = metrics_.front();
    const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (std::equal(first.begin(), first.end(), metrics.begin(), metrics.end(), same_name)) return;
    throw InvalidArgument(fmt::format(
        "the loss reports {} values for micro-batch {}, but {} or others for micro-batch 0; report the same for all",
        metrics.size(), micro_batch, first.size()));
  }

  // All micro-batches have a weight, or none has.
  void note_weight(int micro_batch, const std::optional<at::Tensor>& weight) {
    if (has_weights_.value_or(weight.has_value()) != weight.has_value()) {
      throw InvalidArgument(fmt::format(
          "the loss has {} weight for micro-batch {}, but {} for one before; return LossValue(sum, weight) for all, or "
          "for none",
          weight ? "a" : "no", micro_batch, weight ? "none" : "one"));
    }
    has_weights_ = weight.has_value();
    if (weight) weights_[micro_batch] = checked_weight(*weight);
  }

  // A mean by the weights, where there are some: the sum is divided by all of them at the end. What a micro-batch
  // without any weight reports, 0 / 0 perhaps, does not count.
  at::Tensor scale(int micro_batch, const at::Tensor& value) const {
    if (has_weights()) {
      const double weight = weights_[micro_batch];
      const at::Tensor scaled = value * weight;
      return weight == 0 ? at::zeros_like(scaled) : scaled;
    }
    if (options_.loss_reduction() == LossReduction::kSum) return value;
    return value * (static_cast<double>(targets_[micro_batch].num_samples) / static_cast<double>(num_samples_));
  }

  void check(int micro_batch, const at::Tensor& loss) {
    if (!loss.defined()) throw InvalidArgument("the loss function returned an undefined tensor");
    if (loss.numel() != 1) {
      throw InvalidArgument(fmt::format(
          "the loss has the shape [{}], but a backward starts from a scalar; reduce it, with mean() for example",
          fmt::join(loss.sizes(), ", ")));
    }
    if (!loss.requires_grad()) {
      throw InvalidArgument(
          "the loss needs no gradient: nothing it was computed from does, it was detached, or InferenceMode is on; "
          "there is nothing to train");
    }
    if (!options_.check_loss()) return;
    const double value = loss.item<double>();
    if (std::isfinite(value)) return;
    const std::int64_t first_sample = first_sample_ + targets_[micro_batch].first_sample;
    const std::string text = fmt::format("the loss of micro-batch {} (samples {} to {}) is {}", micro_batch,
                                         first_sample, first_sample + targets_[micro_batch].num_samples - 1, value);
    if (throws_) throw NonFiniteLossError(text);
    if (non_finite_.empty()) non_finite_ = text;
  }

  const UserLoss& loss_;
  const std::vector<MicroBatch>& targets_;
  const std::int64_t first_sample_;  // of this replica
  const std::int64_t num_samples_;   // of all replicas
  const PipelineOptions& options_;
  const bool throws_;
  std::string non_finite_;
  std::optional<bool> has_weights_;                         // not known before the first call
  std::vector<double> weights_;                             // by micro-batch, if there are some
  std::vector<std::map<std::string, at::Tensor>> metrics_;  // by micro-batch
};

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
  StepCall call = engine.make_call(engine.update() ? "train_step of the optimizers" : "train_step");
  call.needs_grad = true;
  std::vector<MicroBatch> target_batches;
  MiniBatch batch = engine.make_batch(std::move(call), inputs, &targets, &target_batches);

  Group& group = engine.group();
  MicroBatchLoss micro_batch_loss(
      loss, target_batches, batch, engine.options(),
      group.world().size == 1 ? MicroBatchLoss::NonFinite::kThrow : MicroBatchLoss::NonFinite::kRemember);
  StepLoss stage_loss;
  stage_loss.call = [&](int micro_batch, const Tensors& outputs) { return micro_batch_loss(micro_batch, outputs); };
  stage_loss.has_weights = [&] { return micro_batch_loss.has_weights(); };
  stage_loss.is_checked = engine.options().check_loss();
  stage_loss.targets = &target_batches;
  std::optional<LossCheck> loss_check;
  if (engine.is_recording()) {
    loss_check.emplace(loss, engine.options().loss_reduction(), target_batches);
    stage_loss.call = [&](int micro_batch, const Tensors& outputs) {
      loss_check->keep(micro_batch, outputs);
      return micro_batch_loss(micro_batch, outputs);
    };
  }
  Step step(engine, std::move(batch), engine.whole_step(), std::move(stage_loss));
  StepResult result;
  try {
    result.timeline = step.run(Phase::kAll);
  } catch (const ActionError& error) {
    error.rethrow_if<NonFiniteLossError>();
    throw;
  }
  LossParts parts;
  if (step.last() != nullptr) parts = group.failing([&] { return micro_batch_loss.parts(step.last()->results()); });
  const std::string non_finite = step.share(result, parts, micro_batch_loss.non_finite());
  if (!non_finite.empty()) {
    step.roll_back();
    throw NonFiniteLossError(non_finite);
  }
  if (result.weight) step.divide_gradients(*result.weight);
  const bool is_updated = engine.whole_step() == StepMode::kUpdating && !result.weight;
  if (engine.update() && !is_updated) run_on_stages(engine, engine.update());
  for (std::size_t stage = 0; stage < result.memory.size(); ++stage) {
    const int worker = step.schedule().worker_of_stage[stage];
    result.timeline.workers[worker].peak_bytes += result.memory[stage].peak_bytes;
  }
  const Tensors input_grads = step.input_grads();
  if (step.recorder() != nullptr) {
    if (const std::optional<LossRecord> compared = loss_check->compare()) step.recorder()->add(*compared);
    step.finish_recording(result.loss, input_grads);
  }
  lock.reset();  // the inputs may come out of this very pipeline
  backward_into(inputs, input_grads, result.weight);
  return result;
}

}  // namespace gpipe::detail
