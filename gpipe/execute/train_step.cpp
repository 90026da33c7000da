// train_step: forward, loss and backward of a mini-batch.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/step_in_flight.h"

namespace gpipe {
namespace {

// Copies of the gradients, to be put back when a step must not count.
class Gradients {
 public:
  explicit Gradients(Tensors parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      copies_.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    }
  }
  void put_back() const {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      at::Tensor& grad = parameters_[index].mutable_grad();
      if (copies_[index].defined()) {
        grad.copy_(copies_[index]);
      } else {
        grad.reset();
      }
    }
  }

 private:
  Tensors parameters_;
  Tensors copies_;
};

// Runs the loss of each micro-batch, weighs it unless it has weights of its own, and puts the parts together.
class WeighedLoss {
 public:
  // `goes_on` says that a loss that is not finite is remembered only: other ranks are in the middle of the step.
  WeighedLoss(const PipelineImpl::Loss& loss, const std::vector<MicroBatch>& targets, const ReadyBatch& batch,
              const PipelineOptions& options, bool goes_on)
      : loss_(loss),
        targets_(targets),
        first_sample_(batch.first_sample),
        num_samples_(batch.num_samples),
        options_(options),
        goes_on_(goes_on),
        weights_(targets.size()),
        metrics_(targets.size()) {}

  // On the last stage's worker.
  at::Tensor operator()(int micro_batch, const Tensors& outputs) {
    LossValue value = loss_(outputs, targets_on(micro_batch, outputs));
    check(micro_batch, value.loss);
    note_weight(micro_batch, value.weight);
    for (auto& [name, metric] : value.metrics) metric = metric.detach();
    check_names(micro_batch, value.metrics);
    metrics_[micro_batch] = std::move(value.metrics);
    return has_weights() ? value.loss : weigh(micro_batch, value.loss);
  }

  // Whether it gave any, so far.
  bool has_weights() const { return has_weights_.value_or(false); }

  // What was remembered; empty: all were finite.
  const std::string& non_finite() const { return non_finite_; }

  // Of what the calls above have returned.
  LossParts parts(const std::vector<Tensors>& losses) const {
    LossParts result;
    Tensors weighed;
    for (const Tensors& loss : losses) weighed.push_back(loss.front());
    result.losses = at::stack(weighed);
    if (has_weights()) result.weights = torch::tensor(weights_, at::kDouble);
    for (const auto& [name, first] : metrics_.front()) {
      Tensors parts;
      for (std::size_t micro_batch = 0; micro_batch < metrics_.size(); ++micro_batch) {
        const at::Tensor& metric = metrics_[micro_batch].at(name);
        parts.push_back(first.dim() == 0 ? weigh(static_cast<int>(micro_batch), metric) : metric);
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

  // The same for every micro-batch; the first comes first.
  void check_names(int micro_batch, const std::map<std::string, at::Tensor>& metrics) const {
    if (micro_batch == 0) return;
    const auto& first = metrics_.front();
    const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (std::equal(first.begin(), first.end(), metrics.begin(), metrics.end(), same_name)) return;
    throw InvalidArgument(fmt::format(
        "the loss reports {} values for micro-batch {}, but {} or others for micro-batch 0; report the same for all",
        metrics.size(), micro_batch, first.size()));
  }

  // All micro-batches have one, or none has.
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

  static double checked_weight(const at::Tensor& weight) {
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

  // A mean by the weights, where there are some: the sum is divided by all of them at the end. What a micro-batch
  // without any weight reports, 0 / 0 perhaps, does not count.
  at::Tensor weigh(int micro_batch, const at::Tensor& value) const {
    if (has_weights()) {
      const double weight = weights_[micro_batch];
      const at::Tensor weighed = value * weight;
      return weight == 0 ? at::zeros_like(weighed) : weighed;
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
    if (!goes_on_) throw NonFiniteLossError(text);
    if (non_finite_.empty()) non_finite_ = text;
  }

  const PipelineImpl::Loss& loss_;
  const std::vector<MicroBatch>& targets_;
  const std::int64_t first_sample_;  // of this replica
  const std::int64_t num_samples_;   // of all replicas
  const PipelineOptions& options_;
  const bool goes_on_;
  std::string non_finite_;
  std::optional<bool> has_weights_;                         // not known before the first call
  std::vector<double> weights_;                             // by micro-batch, if there are some
  std::vector<std::map<std::string, at::Tensor>> metrics_;  // by micro-batch
};

void rethrow_if_non_finite(const ActionError& error) {
  try {
    std::rethrow_exception(error.cause());
  } catch (const NonFiniteLossError&) {
    throw;
  } catch (...) {  // NOLINT(bugprone-empty-catch) the action error says it
  }
}

}  // namespace

at::Tensor LossValue::as_tensor(double weight) { return at::scalar_tensor(weight, at::kDouble); }

const at::Tensor& PipelineImpl::only(const Tensors& outputs) {
  if (outputs.size() == 1) return outputs.front();
  throw InvalidArgument(fmt::format(
      "the model has {} outputs, but the loss takes one; give inputs and targets as std::vector, and a loss of "
      "(outputs, targets)",
      outputs.size()));
}

StepResult PipelineImpl::train_step(const Tensors& inputs, const Tensors& targets, const Loss& loss) {
  const at::AutoGradMode grad_mode(true);
  std::optional<CallLock::Scope> lock(std::in_place, calls_, "train_step");
  StepCall call = make_call("train_step");
  call.needs_grad = true;
  std::vector<MicroBatch> target_batches;
  ReadyBatch batch = ready(std::move(call), inputs, &targets, &target_batches);
  std::optional<Gradients> gradients;
  if (options_.check_loss()) gradients.emplace(parameters());

  WeighedLoss weighed(loss, target_batches, batch, options_, /*goes_on=*/ranks_ != nullptr);
  StepInFlight step(
      *this, std::move(batch), StepMode::kTogether,
      [&](int micro_batch, const Tensors& outputs) { return weighed(micro_batch, outputs); },
      [&] { return weighed.has_weights(); });
  StepResult result;
  try {
    result.timeline = step.run(Phase::kAll);
  } catch (const ActionError& error) {
    if (gradients) gradients->put_back();
    rethrow_if_non_finite(error);
    throw;
  } catch (...) {
    if (gradients) gradients->put_back();
    throw;
  }
  LossParts parts;
  if (step.last() != nullptr) parts = step.together([&] { return weighed.parts(step.last()->results()); });
  const std::string non_finite = step.share(result, parts, weighed.non_finite());
  if (!non_finite.empty()) {
    step.take_back();
    if (gradients) gradients->put_back();
    throw NonFiniteLossError(non_finite);
  }
  if (result.weight) step.divide_gradients(*result.weight);
  for (std::size_t stage = 0; stage < result.memory.size(); ++stage) {
    const int worker = step.schedule().worker_of_stage[stage];
    result.timeline.workers[worker].peak_bytes += result.memory[stage].peak_bytes;
  }

  Tensors roots;
  Tensors grads;
  const double divisor = result.weight.value_or(1);
  const Tensors input_grads = step.input_grads();
  for (std::size_t index = 0; index < std::min(inputs.size(), input_grads.size()); ++index) {
    if (!input_grads[index].defined() || !inputs[index].defined() || divisor == 0) continue;
    const at::Tensor grad = input_grads[index].to(inputs[index].device());
    roots.push_back(inputs[index]);
    grads.push_back(result.weight ? grad / divisor : grad);
  }
  lock.reset();  // the inputs may come out of this very pipeline
  if (!roots.empty()) torch::autograd::backward(roots, grads);
  return result;
}

}  // namespace gpipe
