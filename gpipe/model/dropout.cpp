#include "gpipe/model/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/model/dropout_mask.h"
#include "gpipe/model/layer_scope.h"

namespace gpipe::nn {
namespace {

// See Note [Dropout mask].
std::uint64_t mask_key(const LayerRun& run, int call) {
  const std::uint64_t place = static_cast<std::uint64_t>(call) << 32 | static_cast<std::uint32_t>(run.layer);
  at::Philox4_32 engine(run.seed, place, static_cast<std::uint64_t>(run.step));
  const std::uint64_t low = engine();
  return static_cast<std::uint64_t>(engine()) << 32 | low;
}

// Of the input's shape and type, on its device.
at::Tensor make_mask(const at::Tensor& input, const DropoutOptions& options, const LayerRun& run, int call) {
  if (input.is_meta()) return at::empty_like(input, at::MemoryFormat::Contiguous);
  // A mask of one sample per row first; the samples' dimension goes where it belongs afterwards.
  at::IntArrayRef sizes = input.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  const std::int64_t sample_dim = options.sample_dim();
  std::rotate(shape.begin(), shape.begin() + sample_dim, shape.begin() + sample_dim + 1);
  const bool is_double = input.scalar_type() == at::kDouble;
  const at::Tensor mask = at::empty(shape, at::TensorOptions().dtype(is_double ? at::kDouble : at::kFloat));
  const std::int64_t size = mask.numel() / shape[0];
  const std::uint64_t key = mask_key(run, call);
  for (std::int64_t row = 0; row < shape[0]; ++row) {
    const auto sample = static_cast<std::uint64_t>(run.first_sample + row);
    if (is_double) {
      detail::fill_sample(mask.data_ptr<double>() + row * size, size, key, sample, options.p());
    } else {
      detail::fill_sample(mask.data_ptr<float>() + row * size, size, key, sample, options.p());
    }
  }
  return at::movedim(mask, 0, sample_dim).to(input.options().requires_grad(false));
}

}  // namespace

DropoutImpl::DropoutImpl(const DropoutOptions& options_) : options(options_) { DropoutImpl::reset(); }

void DropoutImpl::reset() {
  if (options.p() >= 0 && options.p() <= 1) return;
  throw InvalidArgument(fmt::format("a dropout probability must be between 0 and 1, got {}", options.p()));
}

at::Tensor DropoutImpl::forward(const at::Tensor& input) {
  if (!is_training()) return input;
  const LayerRun* run = LayerScope::current();
  if (run == nullptr) return at::dropout(input, options.p(), /*train=*/true);
  if (!input.is_floating_point()) {
    throw InvalidArgument(
        fmt::format("dropout takes floating-point tensors, got {}", c10::toString(input.scalar_type())));
  }
  if (options.sample_dim() < 0 || options.sample_dim() >= input.dim()) {
    throw InvalidArgument(fmt::format("dropout by samples of dimension {}, got a tensor of {} dimensions",
                                      options.sample_dim(), input.dim()));
  }
  const int call = LayerScope::next_call();
  if (options.p() == 0 || input.numel() == 0) return input;
  return input * make_mask(input, options, *run, call);
}

void DropoutImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("gpipe::nn::Dropout(p={}, sample_dim={})", options.p(), options.sample_dim());
}

}  // namespace gpipe::nn
