// ResNet-18, 50 and 101 for ImageNet, with the parameter names of the public weights.
#pragma once

#include <torch/arg.h>

#include <cstdint>

#include "gpipe/gpipe.h"

namespace gpipe::models {

struct ResNetOptions {
  ResNetOptions(std::int64_t depth) : depth_(depth) {}  // NOLINT(google-explicit-constructor)

  // 18, 50 or 101.
  TORCH_ARG(std::int64_t, depth);
  TORCH_ARG(std::int64_t, num_classes) = 1000;
  TORCH_ARG(std::int64_t, in_channels) = 3;
  TORCH_ARG(bool, deferred_batch_norm) = true;
};

// Flat: each convolution, norm and ReLU is a layer, and a block's input goes to its end as a skip; 370 layers for
// ResNet-101. Names as in torchvision: conv1.weight, layer2.0.downsample.0.weight, fc.bias. Images [N, C, H, W] go in,
// logits [N, num_classes] come out. Throws InvalidArgument for options it cannot be built from.
LayerChain resnet(const ResNetOptions& options);

inline LayerChain resnet18(std::int64_t num_classes = 1000) {
  return resnet(ResNetOptions(18).num_classes(num_classes));
}
inline LayerChain resnet50(std::int64_t num_classes = 1000) {
  return resnet(ResNetOptions(50).num_classes(num_classes));
}
inline LayerChain resnet101(std::int64_t num_classes = 1000) {
  return resnet(ResNetOptions(101).num_classes(num_classes));
}

}  // namespace gpipe::models
