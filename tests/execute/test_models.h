// Small models of the four kinds the pipeline is held to, each of at least 16 layers so that eight workers have two
// stages.
#pragma once

#include <torch/torch.h>

#include <string>

#include "gpipe/execute/pipeline.h"
#include "gpipe/model/deferred_batch_norm.h"
#include "gpipe/model/dropout.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/skip.h"

namespace gpipe::test {

struct StashImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    stash("skip", input);
    return input;
  }
};
TORCH_MODULE(Stash);

struct PopAndConcatenateImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return at::cat({pop("skip"), input}, 1); }
};
TORCH_MODULE(PopAndConcatenate);

struct UpsampleTwiceImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return at::upsample_nearest2d(input, {}, {{2.0, 2.0}}); }
};
TORCH_MODULE(UpsampleTwice);

// x + dropout(attention(norm(x))), over (sample, token, feature).
struct AttentionBlockImpl : torch::nn::Module {
  AttentionBlockImpl(int features, int heads, double p)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({features})))),
        attention(register_module("attention", torch::nn::MultiheadAttention(
                                                   torch::nn::MultiheadAttentionOptions(features, heads).dropout(p)))),
        dropout(register_module("dropout", torch::nn::Dropout(p))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor x = norm(input).transpose(0, 1);
    return input + dropout(std::get<0>(attention(x, x, x)).transpose(0, 1));
  }
  torch::nn::LayerNorm norm;
  torch::nn::MultiheadAttention attention;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(AttentionBlock);

struct FeedForwardBlockImpl : torch::nn::Module {
  FeedForwardBlockImpl(int features, double p)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({features})))),
        wide(register_module("wide", torch::nn::Linear(features, 2 * features))),
        narrow(register_module("narrow", torch::nn::Linear(2 * features, features))),
        dropout(register_module("dropout", torch::nn::Dropout(p))) {}
  at::Tensor forward(const at::Tensor& input) { return input + dropout(narrow(at::gelu(wide(norm(input))))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear wide;
  torch::nn::Linear narrow;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(FeedForwardBlock);

struct TestModel {
  std::string name;
  LayerChain chain;
  at::Tensor input;   // of 16 samples
  at::Tensor target;  // of the same
  std::function<LossValue(const at::Tensor&, const at::Tensor&)> loss;
};

// For the oracle, which takes lists of tensors.
inline PipelineImpl::Loss loss_of(const TestModel& model) {
  return [loss = model.loss](const Tensors& outputs, const Tensors& targets) {
    return loss(outputs.front(), targets.front());
  };
}

inline at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}
inline at::Tensor token_cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output.flatten(0, 1), target.flatten());
}
inline at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

inline LossValue padded_cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-1).reduction(torch::kSum);
  return LossValue(torch::nn::functional::cross_entropy(output.flatten(0, 1), target.flatten(), options),
                   target.ne(-1).sum());
}

// With `by_sample`, every dropout is gpipe::nn::Dropout: then the number of micro-batches does not matter either.
inline TestModel mlp(bool by_sample = false) {
  TestModel model{"mlp", {}, torch::randn({16, 6}), torch::randint(5, {16}, torch::kLong), cross_entropy};
  for (int block = 0; block < 6; ++block) {
    const std::string number = std::to_string(block);
    model.chain.add<torch::nn::Linear>("linear" + number, block == 0 ? 6 : 12, block == 5 ? 5 : 12);
    if (block == 5) break;
    if (by_sample || block % 2 == 0) {
      model.chain.add<nn::Dropout>("drop" + number, 0.1);
    } else {
      model.chain.add<torch::nn::Dropout>("drop" + number, torch::nn::DropoutOptions(0.1).inplace(block == 3));
    }
    model.chain.add<torch::nn::ReLU>("relu" + number, torch::nn::ReLUOptions(/*inplace=*/block % 2 == 1));
  }
  return model;
}

inline TestModel cnn() {
  TestModel model{"cnn", {}, torch::randn({16, 2, 6, 6}), torch::randint(5, {16}, torch::kLong), cross_entropy};
  for (int block = 0; block < 4; ++block) {
    const std::string number = std::to_string(block);
    model.chain.add<torch::nn::Conv2d>("conv" + number,
                                       torch::nn::Conv2dOptions(block == 0 ? 2 : 5, 5, 3).padding(1).bias(false));
    model.chain.add<nn::DeferredBatchNorm2d>("norm" + number, torch::nn::BatchNormOptions(5));
    model.chain.add<torch::nn::ReLU>("relu" + number, torch::nn::ReLUOptions(true));
    model.chain.add<torch::nn::Dropout>("drop" + number, 0.1);
  }
  model.chain.add<torch::nn::Flatten>("flatten");
  model.chain.add<torch::nn::Linear>("head", 5 * 36, 5);
  return model;
}

// With `by_sample`, dropout stands between the blocks: inside the attention, the samples are no longer the first
// dimension.
inline TestModel transformer(bool by_sample = false) {
  const double p = by_sample ? 0 : 0.1;
  TestModel model{"transformer",
                  {},
                  torch::randint(11, {16, 5}, torch::kLong),
                  torch::randint(11, {16, 5}, torch::kLong),
                  token_cross_entropy};
  model.chain.add<torch::nn::Embedding>("embedding", 11, 8);
  for (int block = 0; block < 7; ++block) {
    model.chain.add<AttentionBlock>("attention" + std::to_string(block), 8, 2, p);
    model.chain.add<FeedForwardBlock>("feed_forward" + std::to_string(block), 8, p);
    if (by_sample) model.chain.add<nn::Dropout>("drop" + std::to_string(block), 0.1);
  }
  model.chain.add<torch::nn::Linear>("head", 8, 11);
  return model;
}

// With a tied head and a loss over the tokens that count, of which some micro-batches have none.
inline TestModel padded_transformer() {
  TestModel model = transformer();
  model.name = "padded";
  model.chain.tie("embedding.weight", "head.weight");
  model.target = model.target.clone();
  for (std::int64_t row = 0; row < 16; ++row) {
    const bool counts = row != 1 && (row < 4 || row > 7);
    model.target[row].narrow(0, counts ? 2 + row % 4 : 0, counts ? 3 - row % 4 : 5).fill_(-1);
  }
  model.loss = padded_cross_entropy;
  return model;
}

// Two skips under one name in two namespaces, and a last layer that uses the first one's weight.
inline TestModel unet(bool by_sample = false) {
  TestModel model{"unet", {}, torch::randn({16, 3, 8, 8}), torch::randn({16, 3, 8, 8}), squared_error};
  LayerChain& chain = model.chain;
  const auto conv = [&](const std::string& name, int from, int to) {
    chain.add<torch::nn::Conv2d>(name, torch::nn::Conv2dOptions(from, to, 3).padding(1));
    chain.add<torch::nn::ReLU>(name + "_relu", torch::nn::ReLUOptions(true));
  };
  const auto drop = [&](const std::string& name) {
    if (by_sample) {
      chain.add<nn::Dropout>(name, 0.1);
    } else {
      chain.add<torch::nn::Dropout2d>(name, 0.1);
    }
  };
  chain.add<torch::nn::Conv2d>("embed", torch::nn::Conv2dOptions(3, 4, 1));
  chain.add<Stash>("stash1").isolate("stash1", "level1");
  conv("down1", 4, 6);
  chain.add<torch::nn::MaxPool2d>("pool1", 2);
  chain.add<Stash>("stash2").isolate("stash2", "level2");
  conv("down2", 6, 8);
  drop("drop_down");
  conv("middle", 8, 8);
  chain.add<PopAndConcatenate>("pop2").isolate("pop2", "level2");
  conv("up2", 14, 6);
  chain.add<UpsampleTwice>("upsample1");
  chain.add<PopAndConcatenate>("pop1").isolate("pop1", "level1");
  conv("up1", 10, 4);
  drop("drop_up");
  chain.add<torch::nn::ConvTranspose2d>("head", torch::nn::ConvTranspose2dOptions(4, 3, 1));
  chain.tie("embed.weight", "head.weight");
  return model;
}

}  // namespace gpipe::test
