// What the ResNets have in common: layers of residual blocks, flat, whose ends are a stash and a pop.
#pragma once

#include <torch/nn/init.h>

#include <cstdint>
#include <string>

#include "gpipe/gpipe.h"
#include "models/batch_norm.h"

namespace gpipe::models {

// A convolution without bias, Kaiming's normal initialisation for ReLU.
struct KaimingConv2dImpl : torch::nn::Conv2dImpl {
  KaimingConv2dImpl(const torch::nn::Conv2dOptions& options_, bool by_fan_out)
      : Conv2dImpl(torch::nn::Conv2dOptions(options_).bias(false)) {
    if (by_fan_out) {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanOut, torch::kReLU);
    } else {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
    }
  }
  at::Tensor forward(const at::Tensor& input) { return Conv2dImpl::forward(input); }
};
TORCH_MODULE(KaimingConv2d);

// The start of a block.
struct IdentityStashImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    stash("identity", input);
    return input;
  }
};
TORCH_MODULE(IdentityStash);

// The end of a block whose input and output have one shape.
struct AddIdentityImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input + pop("identity"); }
};
TORCH_MODULE(AddIdentity);

// Global average, [N, C, H, W] to [N, C].
struct GlobalAverageImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input.mean({2, 3}); }
};
TORCH_MODULE(GlobalAverage);

// Adds layers named `block`.something, with skips of their own.
class BlockBuilder {
 public:
  BlockBuilder(LayerChain& chain, std::string block) : chain_(chain), block_(std::move(block)) {}

  template <typename Holder, typename... Args>
  BlockBuilder& add(const std::string& name, const Args&... args) {
    const std::string full = block_ + "." + name;
    chain_.add<Holder>(full, args...).isolate(full, block_);
    return *this;
  }

  BlockBuilder& add_batch_norm(const std::string& name, std::int64_t channels, bool deferred) {
    models::add_batch_norm(chain_, block_ + "." + name, channels, deferred);
    return *this;
  }

 private:
  LayerChain& chain_;
  const std::string block_;
};

}  // namespace gpipe::models
