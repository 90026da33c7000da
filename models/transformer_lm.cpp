#include "models/transformer_lm.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "models/checks.h"
#include "models/decoding.h"

namespace gpipe::models {
namespace {

torch::nn::LayerNorm make_norm(const TransformerLmOptions& options) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({options.width()}).elementwise_affine(options.norm_parameters()));
}

}  // namespace

// Tokens and positions.
class TransformerLmEmbeddingImpl : public torch::nn::Module {
 public:
  explicit TransformerLmEmbeddingImpl(const TransformerLmOptions& options_)
      : options(options_),
        token(register_module("token", torch::nn::Embedding(options.vocabulary_size(), options.width()))),
        dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {
    init_embedding(token);
    if (options.learnt_positions()) {
      position = register_module("position", torch::nn::Embedding(options.max_length(), options.width()));
      init_embedding(position);
    }
  }

  at::Tensor forward(const at::Tensor& ids) {
    check_ids("the language model", ids, options.max_length());
    return dropout(embed(ids, 0));
  }

  at::Tensor embed(const at::Tensor& ids, std::int64_t first) {
    const at::Tensor tokens = token(ids) * std::sqrt(static_cast<double>(options.width()));
    if (!position) return tokens + sinusoids.rows(first, ids.size(1), options.width(), tokens.options());
    return tokens + position->weight.narrow(0, first, ids.size(1));
  }

  TransformerLmOptions options;
  torch::nn::Embedding token;
  torch::nn::Embedding position{nullptr};
  gpipe::nn::Dropout dropout;
  SinusoidalPositions sinusoids;
};
TORCH_MODULE(TransformerLmEmbedding);

class TransformerLmBlockImpl : public torch::nn::Module {
 public:
  explicit TransformerLmBlockImpl(const TransformerLmOptions& options)
      : attention_norm(register_module("attention_norm", make_norm(options))),
        attention(register_module("attention", SelfAttention(AttentionOptions(options.width(), options.num_heads())
                                                                 .bias(options.bias())
                                                                 .dropout(options.dropout())))),
        feed_forward_norm(register_module("feed_forward_norm", make_norm(options))),
        feed_forward(register_module(
            "feed_forward",
            FeedForward(
                FeedForwardOptions(options.width(), options.feed_forward_width()).bias(options.bias()).gelu(true)))),
        dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor bias = causal_bias(input.size(1), input.size(1), input.options());
    const at::Tensor x = input + dropout(attention(attention_norm(input), bias));
    return x + dropout(feed_forward(feed_forward_norm(x)));
  }

  at::Tensor extend(const at::Tensor& input, KeyValues& past) {
    const at::Tensor x = input + attention->extend(attention_norm(input), past);
    return x + feed_forward(feed_forward_norm(x));
  }

  torch::nn::LayerNorm attention_norm;
  SelfAttention attention;
  torch::nn::LayerNorm feed_forward_norm;
  FeedForward feed_forward;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(TransformerLmBlock);

namespace {

struct HeadImpl : torch::nn::LinearImpl {
  explicit HeadImpl(const TransformerLmOptions& options_)
      : LinearImpl(torch::nn::LinearOptions(options_.width(), options_.vocabulary_size()).bias(options_.bias())) {
    init_head(*this);
  }
  at::Tensor forward(const at::Tensor& input) { return LinearImpl::forward(input); }
};
TORCH_MODULE(Head);

void check(const TransformerLmOptions& options) {
  check_at_least("vocabulary_size", options.vocabulary_size(), 1);
  check_at_least("num_layers", options.num_layers(), 1);
  check_at_least("feed_forward_width", options.feed_forward_width(), 1);
  check_at_least("max_length", options.max_length(), 1);
  AttentionOptions(options.width(), options.num_heads()).dropout(options.dropout()).check();
}

}  // namespace

LayerChain transformer_lm(const TransformerLmOptions& options) {
  check(options);
  LayerChain chain;
  chain.add<TransformerLmEmbedding>("embedding", options);
  for (std::int64_t layer = 0; layer < options.num_layers(); ++layer) {
    chain.add<TransformerLmBlock>(fmt::format("block{}", layer), options);
  }
  chain.add<torch::nn::LayerNorm>(
      "norm", torch::nn::LayerNormOptions({options.width()}).elementwise_affine(options.norm_parameters()));
  chain.add<Head>("head", options);
  if (options.tie_embeddings()) chain.tie("embedding.token.weight", "head.weight");
  return chain;
}

LanguageModelDecoder::LanguageModelDecoder(const torch::nn::Module& model)
    : embedding_(find_layer<TransformerLmEmbeddingImpl>(model, "embedding", "transformer_lm")),
      blocks_(find_layers<TransformerLmBlockImpl>(model, "block")),
      norm_(find_layer<torch::nn::LayerNormImpl>(model, "norm", "transformer_lm")),
      head_(find_layer<torch::nn::LinearImpl>(model, "head", "transformer_lm")) {}

void LanguageModelDecoder::State::select(const at::Tensor& rows) {
  for (KeyValues& layer : layers) layer = layer.select(rows);
}

at::Tensor LanguageModelDecoder::next_token_logits(const at::Tensor& ids, State& state) const {
  check_ids("the language model", ids, embedding_->options.max_length() - state.length);
  check_at_least("the number of tokens to read", ids.size(1), 1);
  EvaluationScope scope;
  for (const auto& block : blocks_) scope.add(*block);
  state.layers.resize(blocks_.size());
  at::Tensor x = embedding_->embed(ids, state.length);
  for (std::size_t block = 0; block < blocks_.size(); ++block) x = blocks_[block]->extend(x, state.layers[block]);
  state.length += ids.size(1);
  return head_->forward(norm_->forward(x.select(1, ids.size(1) - 1)));
}

}  // namespace gpipe::models
