#include "gpipe/model/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {
namespace {

// A kernel here is what a CPU kernel does apart from computing: it makes the tensors that are returned, in the same
// order. Scratch memory within a CPU kernel is its own affair, and is not made here.

using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = c10::optional<at::Tensor>;
using Mask = std::array<bool, 3>;

at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like,
                 at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return at::empty(sizes, like.options(), format);
}

at::Tensor empty_if(bool wanted, at::IntArrayRef sizes, const at::Tensor& like,
                    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return wanted ? empty(sizes, like, format) : at::Tensor();
}

at::Tensor relu(const at::Tensor& self) { return at::empty_like(self); }

at::Tensor& relu_in_place(at::Tensor& self) { return self; }

// A size may stand for all dimensions.
std::int64_t element(at::IntArrayRef sizes, std::int64_t dim) { return sizes.size() == 1 ? sizes[0] : sizes[dim]; }

// As in the CPU kernels: one of the two is enough.
at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  const at::MemoryFormat format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

void check_channels(const at::Tensor& input, std::int64_t expected, const at::Tensor& weight, std::int64_t groups) {
  if (input.dim() == weight.dim() && input.size(1) == expected) return;
  throw InvalidArgument(fmt::format("a convolution with weights [{}] in {} groups takes {} channels, got a tensor [{}]",
                                    fmt::join(weight.sizes(), ", "), groups, expected, fmt::join(input.sizes(), ", ")));
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& /*bias*/,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  check_channels(input, transposed ? weight.size(0) : weight.size(1) * groups, weight, groups);
  std::vector<std::int64_t> sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (std::int64_t dim = 0; dim < input.dim() - 2; ++dim) {
    const std::int64_t reach = element(dilation, dim) * (weight.size(dim + 2) - 1);
    const std::int64_t from = input.size(dim + 2);
    const std::int64_t to =
        transposed
            ? (from - 1) * element(stride, dim) - 2 * element(padding, dim) + reach + element(output_padding, dim) + 1
            : (from + 2 * element(padding, dim) - reach - 1 + element(stride, dim)) / element(stride, dim);
    if (to < 1) {
      throw InvalidArgument(
          fmt::format("a convolution with weights [{}] leaves nothing of a tensor [{}]; pad it, or make it larger",
                      fmt::join(weight.sizes(), ", "), fmt::join(input.sizes(), ", ")));
    }
    sizes.push_back(to);
  }
  return empty(sizes, input, convolution_format(input, weight));
}

Triple convolution_backward(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                            at::OptionalIntArrayRef /*bias_sizes*/, at::IntArrayRef /*stride*/,
                            at::IntArrayRef /*padding*/, at::IntArrayRef /*dilation*/, bool /*transposed*/,
                            at::IntArrayRef /*output_padding*/, std::int64_t /*groups*/, Mask mask) {
  const at::MemoryFormat format = convolution_format(input, weight);
  return {empty_if(mask[0], input.sizes(), input, format), empty_if(mask[1], weight.sizes(), weight, format),
          empty_if(mask[2], {grad_output.size(1)}, grad_output)};
}

Triple batch_norm(const at::Tensor& input, const OptionalTensor& /*weight*/, const OptionalTensor& /*bias*/,
                  const OptionalTensor& /*running_mean*/, const OptionalTensor& /*running_var*/, bool training,
                  double /*momentum*/, double /*eps*/) {
  const std::int64_t num_saved = training ? input.size(1) : 0;
  const at::Tensor mean = empty({num_saved}, input);
  const at::Tensor inverse_deviation = empty({num_saved}, input);
  return {empty(input.sizes(), input, input.suggest_memory_format()), mean, inverse_deviation};
}

Triple batch_norm_backward(const at::Tensor& /*grad_output*/, const at::Tensor& input, const OptionalTensor& /*weight*/,
                           const OptionalTensor& /*running_mean*/, const OptionalTensor& /*running_var*/,
                           const OptionalTensor& /*mean*/, const OptionalTensor& /*inverse_deviation*/,
                           bool /*training*/, double /*eps*/, Mask mask) {
  return {empty_if(mask[0], input.sizes(), input, input.suggest_memory_format()),
          empty_if(mask[1], {input.size(1)}, input), empty_if(mask[2], {input.size(1)}, input)};
}

Triple layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape, const OptionalTensor& /*weight*/,
                  const OptionalTensor& /*bias*/, double /*eps*/) {
  if (input.dim() < static_cast<std::int64_t>(normalized_shape.size()) ||
      input.sizes().slice(input.dim() - normalized_shape.size()) != normalized_shape) {
    throw InvalidArgument(fmt::format("a layer norm over [{}] got a tensor [{}]", fmt::join(normalized_shape, ", "),
                                      fmt::join(input.sizes(), ", ")));
  }
  std::vector<std::int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized_shape.size()), sizes.end(), 1);
  const at::Tensor output = empty(input.sizes(), input);
  const at::Tensor mean = empty(sizes, input);
  return {output, mean, empty(sizes, input)};
}

Triple layer_norm_backward(const at::Tensor& /*grad_output*/, const at::Tensor& input, at::IntArrayRef normalized_shape,
                           const at::Tensor& /*mean*/, const at::Tensor& /*inverse_deviation*/,
                           const OptionalTensor& /*weight*/, const OptionalTensor& /*bias*/, Mask mask) {
  return {empty_if(mask[0], input.sizes(), input), empty_if(mask[1], normalized_shape, input),
          empty_if(mask[2], normalized_shape, input)};
}

Triple group_norm(const at::Tensor& input, const OptionalTensor& /*weight*/, const OptionalTensor& /*bias*/,
                  std::int64_t num_samples, std::int64_t /*num_channels*/, std::int64_t /*size*/,
                  std::int64_t num_groups, double /*eps*/) {
  const at::Tensor output = empty(input.sizes(), input, input.suggest_memory_format());
  const at::Tensor mean = empty({num_samples, num_groups}, input);
  return {output, mean, empty({num_samples, num_groups}, input)};
}

Triple group_norm_backward(const at::Tensor& /*grad_output*/, const at::Tensor& input, const at::Tensor& /*mean*/,
                           const at::Tensor& /*inverse_deviation*/, const OptionalTensor& /*weight*/,
                           std::int64_t /*num_samples*/, std::int64_t num_channels, std::int64_t /*size*/,
                           std::int64_t /*num_groups*/, Mask mask) {
  return {empty_if(mask[0], input.sizes(), input, input.suggest_memory_format()),
          empty_if(mask[1], {num_channels}, input), empty_if(mask[2], {num_channels}, input)};
}

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return empty(sizes, self);
}

at::Tensor embedding_backward(const at::Tensor& grad_output, const at::Tensor& /*indices*/, std::int64_t num_rows,
                              std::int64_t /*padding_index*/, bool /*scale_grad_by_freq*/) {
  return empty({num_rows, grad_output.size(-1)}, grad_output);
}

at::Tensor adaptive_avg_pool2d(const at::Tensor& self, at::IntArrayRef output_size) {
  std::vector<std::int64_t> sizes = self.sizes().vec();
  sizes[sizes.size() - 2] = output_size[0];
  sizes[sizes.size() - 1] = output_size[1];
  return empty(sizes, self, self.suggest_memory_format());
}

at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& /*grad_output*/, const at::Tensor& self) {
  return empty(self.sizes(), self, self.suggest_memory_format());
}

template <typename Kernel>
void add(torch::Library& library, const std::string& name, Kernel* kernel) {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::" + name, ""});
  if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
  library.impl(name.c_str(), kernel);
}

// For good: see Note [Random streams].
void register_meta_kernels() {
  static auto* kernels = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  add(*kernels, "relu", &relu);
  add(*kernels, "relu_", &relu_in_place);
  add(*kernels, "convolution", &convolution);
  add(*kernels, "convolution_backward", &convolution_backward);
  add(*kernels, "native_batch_norm", &batch_norm);
  add(*kernels, "native_batch_norm_backward", &batch_norm_backward);
  add(*kernels, "native_layer_norm", &layer_norm);
  add(*kernels, "native_layer_norm_backward", &layer_norm_backward);
  add(*kernels, "native_group_norm", &group_norm);
  add(*kernels, "native_group_norm_backward", &group_norm_backward);
  add(*kernels, "index_select", &index_select);
  add(*kernels, "embedding_dense_backward", &embedding_backward);
  add(*kernels, "_adaptive_avg_pool2d", &adaptive_avg_pool2d);
  add(*kernels, "_adaptive_avg_pool2d_backward", &adaptive_avg_pool2d_backward);
}

}  // namespace

void use_meta_kernels() {
  static std::once_flag once;
  std::call_once(once, register_meta_kernels);
}

}  // namespace gpipe
