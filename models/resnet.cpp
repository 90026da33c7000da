#include "models/resnet.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "models/checks.h"
#include "models/resnet_blocks.h"

namespace gpipe::models {
namespace {

using torch::nn::Conv2dOptions;

// The end of a block that changes the shape: its children 0 and 1 bring the block's input into the new one.
struct AddDownsampledImpl : torch::nn::Module {
  AddDownsampledImpl(std::int64_t from, std::int64_t to, std::int64_t stride, bool deferred)
      : conv(register_module("0", KaimingConv2d(Conv2dOptions(from, to, 1).stride(stride), /*by_fan_out=*/true))) {
    if (deferred) {
      deferred_norm = register_module("1", gpipe::nn::DeferredBatchNorm2d(torch::nn::BatchNormOptions(to)));
    } else {
      plain_norm = register_module("1", torch::nn::BatchNorm2d(to));
    }
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor identity = conv(pop("identity"));
    return input + (deferred_norm ? deferred_norm(identity) : plain_norm(identity));
  }

  KaimingConv2d conv;
  gpipe::nn::DeferredBatchNorm2d deferred_norm{nullptr};
  torch::nn::BatchNorm2d plain_norm{nullptr};
};
TORCH_MODULE(AddDownsampled);

struct Architecture {
  std::int64_t depth;
  std::vector<int> blocks;  // of the four groups
  std::int64_t expansion;   // of a block's output over its inner channels; 1 for basic blocks
};

const Architecture& architecture(std::int64_t depth) {
  static const auto* architectures =
      new std::vector<Architecture>{{18, {2, 2, 2, 2}, 1}, {50, {3, 4, 6, 3}, 4}, {101, {3, 4, 23, 3}, 4}};
  for (const Architecture& known : *architectures) {
    if (known.depth == depth) return known;
  }
  throw InvalidArgument(fmt::format("there is no ResNet-{}; depth must be 18, 50 or 101", depth));
}

struct BlockShape {
  std::int64_t from;
  std::int64_t inner;
  std::int64_t to;
  std::int64_t stride;
};

void add_block(LayerChain& chain, const std::string& name, const BlockShape& shape, bool deferred) {
  const torch::nn::ReLUOptions in_place(true);
  const bool basic = shape.inner == shape.to;
  BlockBuilder block(chain, name);
  const auto conv = [&](int number, const Conv2dOptions& options) {
    block.add<KaimingConv2d>(fmt::format("conv{}", number), options, /*by_fan_out=*/true);
    block.add_batch_norm(fmt::format("bn{}", number), options.out_channels(), deferred);
  };
  block.add<IdentityStash>("identity");
  if (basic) {
    conv(1, Conv2dOptions(shape.from, shape.to, 3).stride(shape.stride).padding(1));
    block.add<torch::nn::ReLU>("relu1", in_place);
    conv(2, Conv2dOptions(shape.to, shape.to, 3).padding(1));
  } else {
    conv(1, Conv2dOptions(shape.from, shape.inner, 1));
    block.add<torch::nn::ReLU>("relu1", in_place);
    conv(2, Conv2dOptions(shape.inner, shape.inner, 3).stride(shape.stride).padding(1));
    block.add<torch::nn::ReLU>("relu2", in_place);
    conv(3, Conv2dOptions(shape.inner, shape.to, 1));
  }
  if (shape.stride != 1 || shape.from != shape.to) {
    block.add<AddDownsampled>("downsample", shape.from, shape.to, shape.stride, deferred);
  } else {
    block.add<AddIdentity>("residual");
  }
  block.add<torch::nn::ReLU>("relu", in_place);
}

}  // namespace

LayerChain resnet(const ResNetOptions& options) {
  const Architecture& shape = architecture(options.depth());
  check_at_least("num_classes", options.num_classes(), 1);
  check_at_least("in_channels", options.in_channels(), 1);
  const bool deferred = options.deferred_batch_norm();
  LayerChain chain;
  chain.add<KaimingConv2d>("conv1", Conv2dOptions(options.in_channels(), 64, 7).stride(2).padding(3), true);
  add_batch_norm(chain, "bn1", 64, deferred);
  chain.add<torch::nn::ReLU>("relu", torch::nn::ReLUOptions(true));
  chain.add<torch::nn::MaxPool2d>("maxpool", torch::nn::MaxPool2dOptions(3).stride(2).padding(1));
  std::int64_t channels = 64;
  for (int group = 0; group < 4; ++group) {
    const std::int64_t inner = std::int64_t{64} << group;
    for (int block = 0; block < shape.blocks[group]; ++block) {
      add_block(chain, fmt::format("layer{}.{}", group + 1, block),
                {channels, inner, inner * shape.expansion, block == 0 && group > 0 ? 2 : 1}, deferred);
      channels = inner * shape.expansion;
    }
  }
  chain.add<torch::nn::AdaptiveAvgPool2d>("avgpool", torch::nn::AdaptiveAvgPool2dOptions({1, 1}));
  chain.add<torch::nn::Flatten>("flatten");
  chain.add<torch::nn::Linear>("fc", channels, options.num_classes());
  return chain;
}

}  // namespace gpipe::models
