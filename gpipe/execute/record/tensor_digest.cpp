#include "gpipe/execute/record/tensor_digest.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "gpipe/hash/content_hash.h"

namespace gpipe::detail {
namespace {

// In one piece, in this process's memory.
at::Tensor plain_copy(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided) plain = plain.to_dense();
  return plain.cpu().resolve_conj().resolve_neg().contiguous();
}

std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("[{}] of {}", fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
}

at::Tensor as_doubles(const at::Tensor& tensor) {
  const at::Tensor plain = plain_copy(tensor);
  return plain.is_complex() ? at::view_as_real(plain).to(at::kDouble) : plain.to(at::kDouble);
}

}  // namespace

std::string hash_of(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  ContentHash hash;
  for (const at::Tensor& tensor : tensors) {
    const std::string shape = shape_of(tensor);
    hash.add(shape.data(), shape.size());
    if (!tensor.defined()) continue;
    const at::Tensor plain = plain_copy(tensor);
    if (plain.nbytes() > 0) hash.add(plain.data_ptr(), plain.nbytes());
  }
  return hash.finish();
}

std::string shapes_of(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) text += (text.empty() ? "" : "; ") + shape_of(tensor);
  return text;
}

double norm_of(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) sum += as_doubles(tensor).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

double sum_of(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) sum += as_doubles(tensor).sum().item<double>();
  }
  return sum;
}

}  // namespace gpipe::detail
