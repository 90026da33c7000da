#include "models/translation_transformer.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "models/checks.h"
#include "models/decoding.h"

namespace gpipe::models {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Options = TranslationTransformerOptions;

torch::nn::LayerNorm make_norm(const Options& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width()}));
}

AttentionOptions attention_options(const Options& options) {
  return AttentionOptions(options.width(), options.num_heads())
      .head_width(options.head_width())
      .dropout(options.dropout());
}

FeedForward make_feed_forward(const Options& options) {
  const auto depth = static_cast<double>(2 * options.num_layers());
  return FeedForward(FeedForwardOptions(options.width(), options.feed_forward_width())
                         .dropout(options.dropout())
                         .init_divisor(options.scale_feed_forward() ? depth : 1));
}

}  // namespace

// Tokens and positions of one side.
class SideEmbeddingImpl : public torch::nn::Module {
 public:
  SideEmbeddingImpl(const char* side_, const Options& options_)
      : side(side_),
        options(options_),
        token(register_module("token", torch::nn::Embedding(options.vocabulary_size(), options.width()))),
        dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {
    init_embedding(token);
  }

  at::Tensor embed(const at::Tensor& ids, std::int64_t first = 0) {
    check_ids(side, ids, options.max_length() - first);
    const at::Tensor tokens = token(ids) * std::sqrt(static_cast<double>(options.width()));
    return dropout(tokens + sinusoids.rows(first, ids.size(1), options.width(), tokens.options()));
  }

  const char* side;
  Options options;
  torch::nn::Embedding token;
  gpipe::nn::Dropout dropout;
  SinusoidalPositions sinusoids;
};

class SourceEmbeddingImpl : public SideEmbeddingImpl {
 public:
  explicit SourceEmbeddingImpl(const Options& options_) : SideEmbeddingImpl("the encoder", options_) {}

  Three forward(const at::Tensor& source, const at::Tensor& target) {
    return {embed(source), is_padding(source), target};
  }

  at::Tensor is_padding(const at::Tensor& source) const { return source == options.padding_id(); }
};
TORCH_MODULE(SourceEmbedding);

class TargetEmbeddingImpl : public SideEmbeddingImpl {
 public:
  explicit TargetEmbeddingImpl(const Options& options_) : SideEmbeddingImpl("the decoder", options_) {}

  Three forward(const at::Tensor& memory, const at::Tensor& padding, const at::Tensor& target) {
    return {embed(target), memory, padding};
  }
};
TORCH_MODULE(TargetEmbedding);

class EncoderLayerImpl : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const Options& options)
      : attention_norm(register_module("attention_norm", make_norm(options))),
        attention(register_module("attention", SelfAttention(attention_options(options)))),
        feed_forward_norm(register_module("feed_forward_norm", make_norm(options))),
        feed_forward(register_module("feed_forward", make_feed_forward(options))),
        dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

  Three forward(const at::Tensor& state, const at::Tensor& padding, const at::Tensor& target) {
    return {encode(state, padding_bias(padding, state.options())), padding, target};
  }

  at::Tensor encode(const at::Tensor& state, const at::Tensor& bias) {
    const at::Tensor x = state + dropout(attention(attention_norm(state), bias));
    return x + dropout(feed_forward(feed_forward_norm(x)));
  }

  torch::nn::LayerNorm attention_norm;
  SelfAttention attention;
  torch::nn::LayerNorm feed_forward_norm;
  FeedForward feed_forward;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(EncoderLayer);

class EncoderNormImpl : public torch::nn::LayerNormImpl {
 public:
  explicit EncoderNormImpl(const Options& options_) : LayerNormImpl(torch::nn::LayerNormOptions({options_.width()})) {}

  Three forward(const at::Tensor& state, const at::Tensor& padding, const at::Tensor& target) {
    return {LayerNormImpl::forward(state), padding, target};
  }
};
TORCH_MODULE(EncoderNorm);

class DecoderLayerImpl : public torch::nn::Module {
 public:
  explicit DecoderLayerImpl(const Options& options)
      : attention_norm(register_module("attention_norm", make_norm(options))),
        attention(register_module("attention", SelfAttention(attention_options(options)))),
        memory_norm(register_module("memory_norm", make_norm(options))),
        memory_attention(register_module("memory_attention", CrossAttention(attention_options(options)))),
        feed_forward_norm(register_module("feed_forward_norm", make_norm(options))),
        feed_forward(register_module("feed_forward", make_feed_forward(options))),
        dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

  Three forward(const at::Tensor& state, const at::Tensor& memory, const at::Tensor& padding) {
    const at::Tensor bias = causal_bias(state.size(1), state.size(1), state.options());
    const at::Tensor source_bias = padding_bias(padding, state.options());
    const at::Tensor x = state + dropout(attention(attention_norm(state), bias));
    const at::Tensor y = x + dropout(memory_attention(memory_norm(x), memory, source_bias));
    return {y + dropout(feed_forward(feed_forward_norm(y))), memory, padding};
  }

  at::Tensor extend(const at::Tensor& state, const KeyValues& source, const at::Tensor& source_bias,
                    KeyValues& target) {
    const at::Tensor x = state + attention->extend(attention_norm(state), target);
    const at::Tensor y = x + memory_attention->look_at(memory_norm(x), source, source_bias);
    return y + feed_forward(feed_forward_norm(y));
  }

  torch::nn::LayerNorm attention_norm;
  SelfAttention attention;
  torch::nn::LayerNorm memory_norm;
  CrossAttention memory_attention;
  torch::nn::LayerNorm feed_forward_norm;
  FeedForward feed_forward;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(DecoderLayer);

class DecoderNormImpl : public torch::nn::LayerNormImpl {
 public:
  explicit DecoderNormImpl(const Options& options_) : LayerNormImpl(torch::nn::LayerNormOptions({options_.width()})) {}

  at::Tensor forward(const at::Tensor& state, const at::Tensor& /*memory*/, const at::Tensor& /*padding*/) {
    return LayerNormImpl::forward(state);
  }
};
TORCH_MODULE(DecoderNorm);

class TranslationHeadImpl : public torch::nn::LinearImpl {
 public:
  explicit TranslationHeadImpl(const Options& options_)
      : LinearImpl(torch::nn::LinearOptions(options_.width(), options_.vocabulary_size())),
        logit_clip(options_.logit_clip()) {
    init_head(*this);
  }

  at::Tensor forward(const at::Tensor& state) {
    const at::Tensor logits = LinearImpl::forward(state);
    return logit_clip > 0 ? logits.clamp(-logit_clip, logit_clip) : logits;
  }

  double logit_clip;
};
TORCH_MODULE(TranslationHead);

namespace {

constexpr const char* kMaker = "translation_transformer";

void check(const Options& options) {
  check_at_least("num_layers", options.num_layers(), 1);
  check_at_least("feed_forward_width", options.feed_forward_width(), 1);
  check_at_least("vocabulary_size", options.vocabulary_size(), 1);
  check_at_least("max_length", options.max_length(), 1);
  attention_options(options).check();
  if (!(options.logit_clip() >= 0)) {
    throw InvalidArgument(fmt::format("logit_clip is {}; it must be positive, or 0 for none", options.logit_clip()));
  }
}

}  // namespace

LayerChain translation_transformer(const TranslationTransformerOptions& options) {
  check(options);
  LayerChain chain;
  chain.add<SourceEmbedding>("source_embedding", options);
  for (std::int64_t layer = 0; layer < options.num_layers(); ++layer) {
    chain.add<EncoderLayer>(fmt::format("encoder{}", layer), options);
  }
  chain.add<EncoderNorm>("encoder_norm", options);
  chain.add<TargetEmbedding>("target_embedding", options);
  for (std::int64_t layer = 0; layer < options.num_layers(); ++layer) {
    chain.add<DecoderLayer>(fmt::format("decoder{}", layer), options);
  }
  chain.add<DecoderNorm>("decoder_norm", options);
  chain.add<TranslationHead>("head", options);
  if (options.tie_embeddings()) {
    chain.tie("source_embedding.token.weight", "target_embedding.token.weight");
    chain.tie("source_embedding.token.weight", "head.weight");
  }
  return chain;
}

TranslationDecoder::TranslationDecoder(const torch::nn::Module& model)
    : source_embedding_(find_layer<SourceEmbeddingImpl>(model, "source_embedding", kMaker)),
      encoder_(find_layers<EncoderLayerImpl>(model, "encoder")),
      encoder_norm_(find_layer<EncoderNormImpl>(model, "encoder_norm", kMaker)),
      target_embedding_(find_layer<TargetEmbeddingImpl>(model, "target_embedding", kMaker)),
      decoder_(find_layers<DecoderLayerImpl>(model, "decoder")),
      decoder_norm_(find_layer<torch::nn::LayerNormImpl>(model, "decoder_norm", kMaker)),
      head_(find_layer<TranslationHeadImpl>(model, "head", kMaker)) {}

void TranslationDecoder::State::select(const at::Tensor& rows) {
  source_bias = source_bias.index_select(0, rows);
  for (KeyValues& layer : sources) layer = layer.select(rows);
  select_targets(rows);
}

void TranslationDecoder::State::select_targets(const at::Tensor& rows) {
  for (KeyValues& layer : targets) layer = layer.select(rows);
}

TranslationDecoder::State TranslationDecoder::encode(const at::Tensor& source) const {
  EvaluationScope scope;
  scope.add(*source_embedding_);
  for (const auto& layer : encoder_) scope.add(*layer);
  at::Tensor x = source_embedding_->embed(source);
  State state;
  state.source_bias = padding_bias(source_embedding_->is_padding(source), x.options());
  for (const auto& layer : encoder_) x = layer->encode(x, state.source_bias);
  x = encoder_norm_->LayerNormImpl::forward(x);
  for (const auto& layer : decoder_) {
    const KeyValues projected = layer->memory_attention->project(x);
    state.sources.push_back({projected.keys.contiguous(), projected.values.contiguous()});
  }
  state.targets.resize(decoder_.size());
  return state;
}

at::Tensor TranslationDecoder::next_token_log_probs(const at::Tensor& ids, State& state) const {
  const at::Tensor rows = ids.dim() == 1 ? ids.unsqueeze(1) : ids;
  if (rows.size(0) != state.num_rows()) {
    throw InvalidArgument(fmt::format("{} rows of tokens for {} hypotheses", rows.size(0), state.num_rows()));
  }
  check_at_least("the number of tokens to read", rows.size(1), 1);
  EvaluationScope scope;
  scope.add(*target_embedding_);
  for (const auto& layer : decoder_) scope.add(*layer);
  at::Tensor x = target_embedding_->embed(rows, state.length);
  for (std::size_t layer = 0; layer < decoder_.size(); ++layer) {
    x = decoder_[layer]->extend(x, state.sources[layer], state.source_bias, state.targets[layer]);
  }
  state.length += rows.size(1);
  x = decoder_norm_->forward(x.select(1, rows.size(1) - 1));
  return at::log_softmax(head_->forward(x), -1);
}

}  // namespace gpipe::models
