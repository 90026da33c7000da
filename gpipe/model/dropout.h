// Dropout whose mask depends on the sample, not on the micro-batch the sample came in.
#pragma once

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

namespace gpipe::nn {

struct DropoutOptions {
  DropoutOptions(double p = 0.5) : p_(p) {}  // NOLINT(google-explicit-constructor)

  // The probability that an element becomes zero.
  TORCH_ARG(double, p);
  // The dimension that counts the samples: 1 for tensors of (sequence, batch, feature).
  TORCH_ARG(std::int64_t, sample_dim) = 0;
};

// In training, sets elements to zero with probability p and scales the others by 1 / (1 - p); in evaluation, the
// identity.
//
// Inside a layer run (see LayerScope) the mask is a function of (seed, step, layer, call, sample, element): the same
// for every number of micro-batches, every partition, every number of threads, and in recompute. `call` counts the
// dropouts of one run of the layer, `sample` is the position in the mini-batch and `element` the row-major position in
// the sample. The input must have one slice of `sample_dim` per sample of the micro-batch. Outside a layer run it is
// torch::dropout.
//
// Thread-compatible. Throws InvalidArgument for p outside [0, 1], an input that is not floating-point and a
// `sample_dim` that the input does not have.
class DropoutImpl : public torch::nn::Cloneable<DropoutImpl> {
 public:
  explicit DropoutImpl(const DropoutOptions& options_ = {});

  void reset() override;
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  DropoutOptions options;
};
TORCH_MODULE(Dropout);

}  // namespace gpipe::nn
