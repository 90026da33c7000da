#include "gpipe/execute/stage/earlier_gradients.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <set>
#include <utility>

namespace gpipe::detail {

void EarlierGradients::set_aside(const std::vector<ChainLayer>& layers) {
  std::set<const at::TensorImpl*> seen;  // two layers of a stage may share a parameter
  for (const ChainLayer& layer : layers) {
    for (const at::Tensor& parameter : layer.layer.module->parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      items_.push_back({parameter, std::exchange(parameter.mutable_grad(), {})});
    }
  }
}

std::int64_t EarlierGradients::bytes() const {
  std::int64_t bytes = 0;
  for (const Item& item : items_) bytes += bytes_of({item.earlier});
  return bytes;
}

std::int64_t EarlierGradients::bytes_of_step() const {
  std::int64_t bytes = 0;
  for (const Item& item : items_) {
    if (item.earlier.defined()) bytes += bytes_of({item.parameter.grad()});
  }
  return bytes;
}

void EarlierGradients::add_step(double weight) {
  if (weight == 0) {
    put_back();
    return;
  }
  const at::NoGradGuard no_grad;
  for (Item& item : items_) {
    at::Tensor& grad = item.parameter.mutable_grad();
    if (grad.defined()) grad.div_(weight);
    if (!item.earlier.defined()) continue;
    if (grad.defined()) item.earlier.add_(grad);
    grad = std::move(item.earlier);
  }
  items_.clear();
}

void EarlierGradients::put_back() {
  for (Item& item : items_) item.parameter.mutable_grad() = std::move(item.earlier);
  items_.clear();
}

}  // namespace gpipe::detail
