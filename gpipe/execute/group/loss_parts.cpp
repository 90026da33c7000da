#include "gpipe/execute/group/loss_parts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/model/plain_values.h"

namespace gpipe::detail {
namespace {

// In ascending order. See Note [Without operations].
at::Tensor sum_in_order(const at::Tensor& parts) {
  const auto* const plain = parts.dim() == 1 ? plain_values<const float>(parts) : nullptr;
  if (plain != nullptr) {
    float sum = plain[0];
    for (std::int64_t index = 1; index < parts.numel(); ++index) sum += plain[index];
    return at::scalar_tensor(sum, parts.options());
  }
  at::Tensor sum;
  for (const at::Tensor& part : parts.unbind(0)) sum = sum.defined() ? sum + part : part;
  return sum;
}

}  // namespace

void append(LossParts& parts, const LossParts& more) {
  if (!parts.losses.defined()) {
    parts = more;
    return;
  }
  if (!more.losses.defined()) return;
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::equal(parts.metrics.begin(), parts.metrics.end(), more.metrics.begin(), more.metrics.end(), same_name)) {
    throw InvalidArgument("the loss reports other values on one replica than on another; report the same on all");
  }
  if (parts.weights.defined() != more.weights.defined()) {
    throw InvalidArgument(
        "the loss has a weight on one replica and none on another; return LossValue(sum, weight) on all, or on none");
  }
  parts.losses = at::cat({parts.losses, more.losses});
  if (parts.weights.defined()) parts.weights = at::cat({parts.weights, more.weights});
  for (auto& [name, metric] : parts.metrics) {
    metric.parts = at::cat({metric.parts, more.metrics.at(name).parts});
  }
}

void add_up(const LossParts& parts, StepResult& result) {
  if (!parts.losses.defined()) return;
  result.loss = sum_in_order(parts.losses);
  result.metrics.clear();
  for (const auto& [name, metric] : parts.metrics) {
    result.metrics[name] = metric.is_scalar ? metric.parts.sum() : metric.parts;
  }
  if (!parts.weights.defined()) return;
  double weight = 0;
  const double* of_micro_batch = parts.weights.data_ptr<double>();
  for (std::int64_t index = 0; index < parts.weights.numel(); ++index) weight += of_micro_batch[index];
  const auto divide = [&](at::Tensor& sum) { sum = weight == 0 ? at::zeros_like(sum) : sum / weight; };
  result.weight = weight;
  divide(result.loss);
  for (const auto& [name, metric] : parts.metrics) {
    if (metric.is_scalar) divide(result.metrics[name]);
  }
}

}  // namespace gpipe::detail
