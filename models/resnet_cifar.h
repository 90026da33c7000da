// The CIFAR ResNets, with the parameter names of the public weights.
#pragma once

#include <torch/arg.h>

#include <cstdint>

#include "gpipe/gpipe.h"

namespace gpipe::models {

struct ResNetCifarOptions {
  ResNetCifarOptions(std::int64_t depth) : depth_(depth) {}  // NOLINT(google-explicit-constructor)

  // 6 n + 2: 20, 32, 44, 56 and so on.
  TORCH_ARG(std::int64_t, depth);
  TORCH_ARG(std::int64_t, num_classes) = 10;
  TORCH_ARG(std::int64_t, in_channels) = 3;
  TORCH_ARG(bool, deferred_batch_norm) = true;
};

// Flat, as resnet is. Shortcuts without parameters ("option A"): where a block halves the image and doubles the
// channels, its input is subsampled, and padded with channels of zeros on both sides. Names: conv1.weight, bn1.weight,
// layer1.0.conv1.weight, …, linear.bias. Images [N, C, H, W] go in, logits [N, num_classes] come out. Throws
// InvalidArgument for options it cannot be built from.
LayerChain resnet_cifar(const ResNetCifarOptions& options);

}  // namespace gpipe::models
