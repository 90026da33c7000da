#include "gpipe/execute/step/gradient_copies.h"

#include <ATen/ATen.h>

#include <utility>

namespace gpipe::detail {

GradientCopies::GradientCopies(Tensors parameters) : parameters_(std::move(parameters)) {
  for (const at::Tensor& parameter : parameters_) {
    copies_.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
}

void GradientCopies::put_back() const {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    at::Tensor& grad = parameters_[index].mutable_grad();
    if (copies_[index].defined()) {
      grad.copy_(copies_[index]);
    } else {
      grad.reset();
    }
  }
}

}  // namespace gpipe::detail
