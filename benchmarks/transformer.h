// The Transformer the benchmarks run on: 8 blocks, d 512, 8 heads, feed-forward 2048, sequence 128, 1000 tokens.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

namespace gpipe::benchmarks {

constexpr int kNumBlocks = 8;
constexpr int kWidth = 512;
constexpr int kNumHeads = 8;
constexpr int kHidden = 2048;
constexpr int kSequence = 128;
constexpr int kNumTokens = 1000;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("attention_norm", attention_norm);
    register_module("query_key_value", query_key_value);
    register_module("projection", projection);
    register_module("hidden_norm", hidden_norm);
    register_module("expand", expand);
    register_module("contract", contract);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor middle = input + attend(attention_norm(input));
    return middle + contract(torch::relu(expand(hidden_norm(middle))));
  }

  torch::Tensor attend(const torch::Tensor& input) {
    const auto parts =
        query_key_value(input).view({-1, kSequence, 3, kNumHeads, kWidth / kNumHeads}).permute({2, 0, 3, 1, 4});
    const torch::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(double{kWidth} / kNumHeads);
    return projection(scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape({-1, kSequence, kWidth}));
  }

  torch::nn::LayerNorm attention_norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear query_key_value{kWidth, 3 * kWidth};
  torch::nn::Linear projection{kWidth, kWidth};
  torch::nn::LayerNorm hidden_norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear expand{kWidth, kHidden};
  torch::nn::Linear contract{kHidden, kWidth};
};
TORCH_MODULE(Block);

inline torch::nn::Sequential make_transformer() {
  torch::nn::Sequential model;
  model->push_back("embedding", torch::nn::Embedding(kNumTokens, kWidth));
  for (int block = 0; block < kNumBlocks; ++block) model->push_back(fmt::format("block{}", block), Block());
  model->push_back("head", torch::nn::Linear(kWidth, kNumTokens));
  return model;
}

inline torch::Tensor token_loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output.flatten(0, 1), target.flatten());
}

}  // namespace gpipe::benchmarks
