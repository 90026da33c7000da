// The Transformer that is measured: 8 blocks, d 512, 8 heads, feed-forward 2048, sequence 128, 1000 tokens, unless it
// is asked for in other sizes.
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

struct TransformerSizes {
  std::int64_t num_blocks = kNumBlocks;
  std::int64_t width = kWidth;
  std::int64_t num_heads = kNumHeads;
  std::int64_t hidden = kHidden;
  std::int64_t sequence = kSequence;
  std::int64_t num_tokens = kNumTokens;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const TransformerSizes& given = {})
      : sizes(given),
        attention_norm(torch::nn::LayerNormOptions({given.width})),
        query_key_value(given.width, 3 * given.width),
        projection(given.width, given.width),
        hidden_norm(torch::nn::LayerNormOptions({given.width})),
        expand(given.width, given.hidden),
        contract(given.hidden, given.width) {
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
    const std::int64_t head_width = sizes.width / sizes.num_heads;
    const auto parts =
        query_key_value(input).view({-1, sizes.sequence, 3, sizes.num_heads, head_width}).permute({2, 0, 3, 1, 4});
    const torch::Tensor scores =
        parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(head_width));
    return projection(scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape({-1, sizes.sequence, sizes.width}));
  }

  const TransformerSizes sizes;
  torch::nn::LayerNorm attention_norm;
  torch::nn::Linear query_key_value;
  torch::nn::Linear projection;
  torch::nn::LayerNorm hidden_norm;
  torch::nn::Linear expand;
  torch::nn::Linear contract;
};
TORCH_MODULE(Block);

inline torch::nn::Sequential make_transformer(const TransformerSizes& sizes = {}) {
  torch::nn::Sequential model;
  model->push_back("embedding", torch::nn::Embedding(sizes.num_tokens, sizes.width));
  for (int block = 0; block < sizes.num_blocks; ++block) {
    model->push_back(fmt::format("block{}", block), Block(sizes));
  }
  model->push_back("head", torch::nn::Linear(sizes.width, sizes.num_tokens));
  return model;
}

inline torch::Tensor token_loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output.flatten(0, 1), target.flatten());
}

}  // namespace gpipe::benchmarks
