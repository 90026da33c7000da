#include "gpipe/execute/step/loss_check.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>

#include "gpipe/model/boundary.h"
#include "gpipe/model/layer_scope.h"

namespace gpipe::detail {
namespace {

at::Tensor in_precision(const at::Tensor& tensor, bool in_double) {
  return in_double && tensor.defined() && tensor.is_floating_point() ? tensor.to(at::kDouble) : tensor;
}

Tensors in_precision(const Tensors& tensors, bool in_double) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(in_precision(tensor, in_double));
  return result;
}

// Row by row; undefined tensors stay so.
Tensors joined(const std::vector<Tensors>& parts) {
  Tensors whole;
  for (std::size_t index = 0; index < parts.front().size(); ++index) {
    Tensors rows;
    for (const Tensors& part : parts) {
      if (part[index].defined()) rows.push_back(part[index]);
    }
    whole.push_back(rows.empty() ? at::Tensor() : at::cat(rows, 0));
  }
  return whole;
}

bool has_rows(const Tensors& tensors, std::int64_t num_rows) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.dim() > 0 && tensor.size(0) == num_rows);
  });
}

}  // namespace

void LossCheck::keep(int micro_batch, const Tensors& outputs) {
  Tensors& kept = outputs_[static_cast<std::size_t>(micro_batch)];
  kept.clear();
  // A loss may change them in place.
  for (const at::Tensor& output : outputs) kept.push_back(output.defined() ? output.detach().clone() : output);
}

std::optional<LossRecord> LossCheck::compare() const {
  for (std::size_t index = 0; index < outputs_.size(); ++index) {
    if (outputs_[index].empty() || !has_rows(outputs_[index], targets_[index].num_samples)) return std::nullopt;
  }
  if (outputs_.size() < 2) return std::nullopt;
  const std::optional<LossRecord> found = compare_in(/*in_double=*/true);
  return found ? found : compare_in(/*in_double=*/false);
}

std::optional<LossRecord> LossCheck::compare_in(bool in_double) const {
  const at::NoGradGuard no_grad;
  const LayerScope scope(LayerRun{});
  std::vector<Tensors> outputs;
  std::vector<Tensors> targets;
  Value parts;
  parts.weight = 0;
  try {
    for (std::size_t index = 0; index < outputs_.size(); ++index) {
      outputs.push_back(in_precision(outputs_[index], in_double));
      targets.push_back(in_precision(targets_[index].tensors, in_double));
      for (at::Tensor& target : targets.back()) {
        const at::Tensor& beside = outputs.back().front();
        if (target.defined() && beside.defined()) target = target.to(beside.device());
      }
      const Value part = evaluate(outputs.back(), targets.back(), targets_[index].num_samples);
      parts.sum += part.sum;
      parts.weight = part.is_mean ? parts.weight + part.weight : 1;
    }
    const std::int64_t num_rows = targets_.back().first_sample + targets_.back().num_samples;
    const Value whole = evaluate(joined(outputs), joined(targets), num_rows);
    if (parts.weight == 0 || whole.weight == 0) return std::nullopt;
    LossRecord record;
    record.of_parts = parts.sum / parts.weight;
    record.of_whole = whole.sum / whole.weight;
    record.type = c10::toString(whole.type);
    return record;
  } catch (const std::exception&) {
    return std::nullopt;  // it takes no doubles, or no such batch
  }
}

LossCheck::Value LossCheck::evaluate(const Tensors& outputs, const Tensors& targets, std::int64_t num_rows) const {
  const LossValue given = loss_(outputs, targets);
  Value value;
  value.type = given.loss.scalar_type();
  value.sum = given.loss.item<double>();
  if (given.weight) {
    value.weight = given.weight->item<double>();
    if (value.weight == 0) value.sum = 0;  // a mean over nothing, whatever the loss function makes of it
  } else if (reduction_ == LossReduction::kMean) {
    value.weight = static_cast<double>(num_rows);
    value.sum *= value.weight;
  } else {
    value.is_mean = false;
  }
  return value;
}

}  // namespace gpipe::detail
