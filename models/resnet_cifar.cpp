#include "models/resnet_cifar.h"

#include <fmt/format.h>

#include <string>

#include "models/checks.h"
#include "models/resnet_blocks.h"

namespace gpipe::models {
namespace {

using torch::nn::Conv2dOptions;

// Half of the new channels are the old ones, with a quarter of zeros before and after them.
struct AddSubsampledImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor identity = pop("identity");
    const std::int64_t before = (input.size(1) - identity.size(1)) / 2;
    const std::int64_t after = input.size(1) - identity.size(1) - before;
    const at::Tensor subsampled = identity.slice(2, 0, c10::nullopt, 2).slice(3, 0, c10::nullopt, 2);
    return input + at::constant_pad_nd(subsampled, {0, 0, 0, 0, before, after});
  }
};
TORCH_MODULE(AddSubsampled);

struct KaimingLinearImpl : torch::nn::LinearImpl {
  KaimingLinearImpl(std::int64_t from, std::int64_t to) : LinearImpl(from, to) {
    torch::nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
  }
  at::Tensor forward(const at::Tensor& input) { return LinearImpl::forward(input); }
};
TORCH_MODULE(KaimingLinear);

void add_block(LayerChain& chain, const std::string& name, std::int64_t from, std::int64_t to, bool deferred) {
  const bool halves = from != to;
  BlockBuilder block(chain, name);
  block.add<IdentityStash>("identity");
  block.add<KaimingConv2d>("conv1", Conv2dOptions(from, to, 3).stride(halves ? 2 : 1).padding(1), false);
  block.add_batch_norm("bn1", to, deferred);
  block.add<torch::nn::ReLU>("relu1", torch::nn::ReLUOptions(true));
  block.add<KaimingConv2d>("conv2", Conv2dOptions(to, to, 3).padding(1), false);
  block.add_batch_norm("bn2", to, deferred);
  if (halves) {
    block.add<AddSubsampled>("shortcut");
  } else {
    block.add<AddIdentity>("shortcut");
  }
  block.add<torch::nn::ReLU>("relu2", torch::nn::ReLUOptions(true));
}

}  // namespace

LayerChain resnet_cifar(const ResNetCifarOptions& options) {
  if (options.depth() < 8 || options.depth() % 6 != 2) {
    throw InvalidArgument(
        fmt::format("depth is {}; a CIFAR ResNet has 6 n + 2 layers: 20, 32, 44 or 56, say", options.depth()));
  }
  check_at_least("num_classes", options.num_classes(), 1);
  check_at_least("in_channels", options.in_channels(), 1);
  const bool deferred = options.deferred_batch_norm();
  LayerChain chain;
  chain.add<KaimingConv2d>("conv1", Conv2dOptions(options.in_channels(), 16, 3).padding(1), false);
  add_batch_norm(chain, "bn1", 16, deferred);
  chain.add<torch::nn::ReLU>("relu", torch::nn::ReLUOptions(true));
  std::int64_t channels = 16;
  for (int group = 0; group < 3; ++group) {
    const std::int64_t to = std::int64_t{16} << group;
    for (std::int64_t block = 0; block < (options.depth() - 2) / 6; ++block) {
      add_block(chain, fmt::format("layer{}.{}", group + 1, block), channels, to, deferred);
      channels = to;
    }
  }
  chain.add<GlobalAverage>("pool");
  chain.add<KaimingLinear>("linear", channels, options.num_classes());
  return chain;
}

}  // namespace gpipe::models
