#include "gpipe/execute/step/weighed_loss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpipe/error.h"

namespace gpipe {

at::Tensor LossValue::as_tensor(double weight) { return at::scalar_tensor(weight, at::kDouble); }

namespace detail {
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

}  // namespace

WeighedLoss::WeighedLoss(const UserLoss& loss, const std::vector<MicroBatch>& targets, const MiniBatch& batch,
                         const PipelineOptions& options, NonFinite non_finite)
    : loss_(loss),
      targets_(targets),
      first_sample_(batch.first_sample),
      num_samples_(batch.num_samples),
      options_(options),
      throws_(non_finite == NonFinite::kThrow),
      weights_(targets.size()),
      metrics_(targets.size()) {}

at::Tensor WeighedLoss::operator()(int micro_batch, const Tensors& outputs) {
  LossValue value = loss_(outputs, targets_on(micro_batch, outputs));
  check(micro_batch, value.loss);
  note_weight(micro_batch, value.weight);
  for (auto& [name, metric] : value.metrics) metric = metric.detach();
  check_names(micro_batch, value.metrics);
  metrics_[micro_batch] = std::move(value.metrics);
  return has_weights() ? value.loss : weigh(micro_batch, value.loss);
}

LossParts WeighedLoss::parts(const std::vector<Tensors>& losses) const {
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

Tensors WeighedLoss::targets_on(int micro_batch, const Tensors& outputs) const {
  Tensors targets = targets_[micro_batch].tensors;
  if (outputs.empty() || !outputs.front().defined()) return targets;
  for (at::Tensor& target : targets) {
    if (target.defined()) target = target.to(outputs.front().device());
  }
  return targets;
}

void WeighedLoss::check_names(int micro_batch, const std::map<std::string, at::Tensor>& metrics) const {
  if (micro_batch == 0) return;
  const auto& first = metrics_.front();
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::equal(first.begin(), first.end(), metrics.begin(), metrics.end(), same_name)) return;
  throw InvalidArgument(fmt::format(
      "the loss reports {} values for micro-batch {}, but {} or others for micro-batch 0; report the same for all",
      metrics.size(), micro_batch, first.size()));
}

void WeighedLoss::note_weight(int micro_batch, const std::optional<at::Tensor>& weight) {
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
at::Tensor WeighedLoss::weigh(int micro_batch, const at::Tensor& value) const {
  if (has_weights()) {
    const double weight = weights_[micro_batch];
    const at::Tensor weighed = value * weight;
    return weight == 0 ? at::zeros_like(weighed) : weighed;
  }
  if (options_.loss_reduction() == LossReduction::kSum) return value;
  return value * (static_cast<double>(targets_[micro_batch].num_samples) / static_cast<double>(num_samples_));
}

void WeighedLoss::check(int micro_batch, const at::Tensor& loss) {
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
  const std::string text = fmt::format("the loss of micro-batch {} (samples {} to {}) is {}", micro_batch, first_sample,
                                       first_sample + targets_[micro_batch].num_samples - 1, value);
  if (throws_) throw NonFiniteLossError(text);
  if (non_finite_.empty()) non_finite_ = text;
}

}  // namespace detail
}  // namespace gpipe
