#include "models/unet.h"

#include <fmt/format.h>

#include <string>

#include "models/checks.h"

namespace gpipe::models {
namespace {

struct StashImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    stash("skip", input);
    return input;
  }
};
TORCH_MODULE(Stash);

struct PopAndConcatenateImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor skip = pop("skip");
    const at::Tensor fitted =
        at::constant_pad_nd(input, {0, skip.size(3) - input.size(3), 0, skip.size(2) - input.size(2)});
    return at::cat({fitted, skip}, 1);
  }
};
TORCH_MODULE(PopAndConcatenate);

struct UpsampleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return at::upsample_nearest2d(input, {}, {{2.0, 2.0}}); }
};
TORCH_MODULE(Upsample);

struct Channels {
  std::int64_t from;
  std::int64_t inner;
  std::int64_t to;
};

void add_convs(LayerChain& chain, const std::string& level, const Channels& channels, const UNetOptions& options) {
  for (std::int64_t conv = 0; conv < options.num_convs(); ++conv) {
    const std::int64_t from = conv == 0 ? channels.from : channels.inner;
    const std::int64_t to = conv + 1 == options.num_convs() ? channels.to : channels.inner;
    chain.add<torch::nn::Conv2d>(fmt::format("{}.conv{}", level, conv),
                                 torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
    chain.add<torch::nn::Dropout2d>(fmt::format("{}.dropout{}", level, conv), options.dropout());
    chain.add<torch::nn::InstanceNorm2d>(fmt::format("{}.norm{}", level, conv), torch::nn::InstanceNormOptions(to));
    chain.add<torch::nn::LeakyReLU>(fmt::format("{}.relu{}", level, conv),
                                    torch::nn::LeakyReLUOptions().negative_slope(0.01));
  }
}

void check(const UNetOptions& options) {
  check_at_least("depth", options.depth(), 1);
  check_at_most("depth", options.depth(), 16);
  check_at_least("num_convs", options.num_convs(), 1);
  check_multiple("base_channels", options.base_channels(), 2);
  check_at_least("in_channels", options.in_channels(), 1);
  check_at_least("out_channels", options.out_channels(), 1);
  check_dropout(options.dropout());
}

}  // namespace

LayerChain unet(const UNetOptions& options) {
  check(options);
  const std::int64_t depth = options.depth();
  // Level 0 has base_channels; what comes up from level 0 has half of it.
  const auto width = [&](std::int64_t level) { return (options.base_channels() << (level + 1)) / 4; };
  LayerChain chain;
  for (std::int64_t level = 0; level < depth; ++level) {
    const std::string name = fmt::format("down{}", level);
    const std::int64_t from = level == 0 ? options.in_channels() : width(level);
    add_convs(chain, name, {from, width(level + 1), width(level + 1)}, options);
    chain.add<Stash>(name + ".stash").isolate(name + ".stash", fmt::format("level{}", level));
    chain.add<torch::nn::MaxPool2d>(name + ".pool", torch::nn::MaxPool2dOptions(2));
  }
  add_convs(chain, "bottleneck", {width(depth), width(depth + 1), width(depth)}, options);
  for (std::int64_t level = depth - 1; level >= 0; --level) {
    const std::string name = fmt::format("up{}", level);
    chain.add<Upsample>(name + ".upsample");
    chain.add<PopAndConcatenate>(name + ".pop").isolate(name + ".pop", fmt::format("level{}", level));
    add_convs(chain, name, {2 * width(level + 1), width(level), width(level)}, options);
  }
  chain.add<torch::nn::Conv2d>("head", torch::nn::Conv2dOptions(width(0), options.out_channels(), 1).bias(false));
  return chain;
}

}  // namespace gpipe::models
