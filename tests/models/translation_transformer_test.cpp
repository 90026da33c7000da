// The translation model against a second implementation, sentence by sentence; padding; decoding; stability measures.
#include "models/translation_transformer.h"

#include <gtest/gtest.h>

#include "tests/models/plain_attention.h"

namespace gpipe::test {
namespace {

using models::TranslationDecoder;
using models::TranslationTransformerOptions;

constexpr int kHeads = 3;
constexpr std::int64_t kPadding = 2;

TranslationTransformerOptions tiny() {
  return TranslationTransformerOptions(2, 20, kHeads)
      .width(12)
      .vocabulary_size(19)
      .padding_id(kPadding)
      .max_length(12)
      .dropout(0.2);
}

// Ids other than padding.
at::Tensor sentence(std::int64_t length) { return torch::randint(3, 19, {length}, torch::kLong); }

at::Tensor pad(const std::vector<at::Tensor>& sentences, std::int64_t length) {
  const at::Tensor padded = at::full({static_cast<std::int64_t>(sentences.size()), length}, kPadding, at::kLong);
  for (std::size_t row = 0; row < sentences.size(); ++row) {
    padded[static_cast<std::int64_t>(row)].narrow(0, 0, sentences[row].size(0)).copy_(sentences[row]);
  }
  return padded;
}

struct Pairs {
  Pairs() {
    torch::manual_seed(4);
    for (const auto& [source, target] : std::vector<std::pair<int, int>>{{5, 7}, {8, 2}, {1, 4}}) {
      sources.push_back(sentence(source));
      targets.push_back(sentence(target));
    }
  }
  std::vector<at::Tensor> sources;
  std::vector<at::Tensor> targets;
};

at::Tensor plain_feed_forward(const State& state, const at::Tensor& x, const std::string& name) {
  const at::Tensor y = state.linear(state.layer_norm(x, name + ".feed_forward_norm"), name + ".feed_forward.wide");
  return state.linear(y.clamp_min(0), name + ".feed_forward.narrow");
}

// Logits [T, V] of one pair.
at::Tensor plain_forward(const State& state, const TranslationTransformerOptions& options, const at::Tensor& source,
                         const at::Tensor& target) {
  const bool tied = options.tie_embeddings();
  const at::Tensor source_table = state["source_embedding.token.weight"];
  const at::Tensor target_table = tied ? source_table : state["target_embedding.token.weight"];
  at::Tensor x = plain_embedding(source_table, source) + plain_positions(source.size(0), options.width());
  for (int layer = 0; layer < options.num_layers(); ++layer) {
    const std::string name = "encoder" + std::to_string(layer);
    x = x + plain_self_attention(state, state.layer_norm(x, name + ".attention_norm"), name + ".attention", kHeads,
                                 /*causal=*/false);
    x = x + plain_feed_forward(state, x, name);
  }
  const at::Tensor memory = state.layer_norm(x, "encoder_norm");
  at::Tensor y = plain_embedding(target_table, target) + plain_positions(target.size(0), options.width());
  for (int layer = 0; layer < options.num_layers(); ++layer) {
    const std::string name = "decoder" + std::to_string(layer);
    y = y + plain_self_attention(state, state.layer_norm(y, name + ".attention_norm"), name + ".attention", kHeads,
                                 /*causal=*/true);
    y = y + plain_cross_attention(state, state.layer_norm(y, name + ".memory_norm"), memory, name + ".memory_attention",
                                  kHeads);
    y = y + plain_feed_forward(state, y, name);
  }
  const at::Tensor head = tied ? source_table : state["head.weight"];
  const at::Tensor logits = at::matmul(state.layer_norm(y, "decoder_norm"), head.t()) + state["head.bias"];
  return options.logit_clip() > 0 ? logits.clamp(-options.logit_clip(), options.logit_clip()) : logits;
}

TEST(TranslationTransformer, IsWhatItsFormulasSayHoweverABatchIsPadded) {
  const at::NoGradGuard no_grad;
  const Pairs pairs;
  for (const TranslationTransformerOptions& options :
       {tiny(), tiny().tie_embeddings(false).head_width(5), tiny().logit_clip(0.5)}) {
    Pipeline pipeline = evaluating(models::translation_transformer(options));
    const State state(*pipeline);
    for (const std::int64_t length : {8, 12}) {
      const at::Tensor logits =
          pipeline->forward_tensors(Tensors{pad(pairs.sources, length), pad(pairs.targets, length)}).front();
      ASSERT_EQ(logits.sizes(), at::IntArrayRef({3, length, 19}));
      for (int row = 0; row < 3; ++row) {
        const at::Tensor expected = plain_forward(state, options, pairs.sources[row], pairs.targets[row]);
        expect_close(logits[row].narrow(0, 0, expected.size(0)), expected);
      }
    }
  }
}

TEST(TranslationTransformer, PaddingGetsNoGradientFromRealTokens) {
  const Pairs pairs;
  const auto gradients = [&](std::int64_t length) {
    Pipeline pipeline = evaluating(models::translation_transformer(tiny()));
    const at::Tensor target = pad(pairs.targets, length);
    const at::Tensor logits = pipeline->forward_tensors(Tensors{pad(pairs.sources, length), target}).front();
    logits.square().sum(2).masked_fill(target.eq(kPadding), 0).sum().backward();
    return pipeline->named_parameters()["source_embedding.token.weight"].grad();
  };
  expect_close(gradients(12), gradients(8), 1e-3);
}

TEST(TranslationTransformer, ARowOfNothingButPaddingStaysFinite) {
  const at::NoGradGuard no_grad;
  Pipeline pipeline = evaluating(models::translation_transformer(tiny()));
  const at::Tensor nothing = at::full({2, 4}, kPadding, at::kLong);
  EXPECT_TRUE(pipeline->forward_tensors(Tensors{nothing, nothing}).front().isfinite().all().item<bool>());
}

TEST(TranslationTransformer, DecodingTokenByTokenGivesTheProbabilitiesOfTheWholeTarget) {
  const Pairs pairs;
  for (const TranslationTransformerOptions& options : {tiny(), tiny().tie_embeddings(false).logit_clip(0.5)}) {
    Pipeline pipeline = evaluating(models::translation_transformer(options));
    const at::Tensor source = pad(pairs.sources, 8);
    const at::Tensor target = torch::randint(3, 19, {3, 6}, torch::kLong);
    const at::Tensor expected =
        at::log_softmax(pipeline->forward_tensors(Tensors{source, target}).front().detach(), -1);
    pipeline->train();  // a decoder evaluates all the same
    const TranslationDecoder decoder(*pipeline);
    TranslationDecoder::State state = decoder.encode(source);
    expect_close(decoder.next_token_log_probs(target.narrow(1, 0, 2), state), expected.select(1, 1));
    for (int position = 2; position < 5; ++position) {
      expect_close(decoder.next_token_log_probs(target.select(1, position), state), expected.select(1, position));
    }
    const at::Tensor rows = torch::tensor({1, 1, 0, 2}, torch::kLong);
    state.select(rows);
    EXPECT_EQ(state.num_rows(), 4);
    expect_close(decoder.next_token_log_probs(target.select(1, 5).index_select(0, rows), state),
                 expected.select(1, 5).index_select(0, rows));
    for (const auto& module : pipeline->modules()) EXPECT_TRUE(module->is_training());
  }
}

TEST(TranslationTransformer, HypothesesOfOneSourceChangePlacesWithoutTheirSources) {
  Pipeline pipeline = evaluating(models::translation_transformer(tiny()));
  const TranslationDecoder decoder(*pipeline);
  const at::Tensor source = sentence(6).expand({3, 6});
  const at::Tensor target = torch::randint(3, 19, {3, 4}, torch::kLong);
  const at::Tensor rows = torch::tensor({2, 0, 0}, torch::kLong);
  TranslationDecoder::State whole = decoder.encode(source);
  decoder.next_token_log_probs(target.narrow(1, 0, 3), whole);
  TranslationDecoder::State targets = whole;
  whole.select(rows);
  targets.select_targets(rows);
  expect_close(decoder.next_token_log_probs(target.select(1, 3), targets),
               decoder.next_token_log_probs(target.select(1, 3), whole));
}

TEST(TranslationTransformer, FeedForwardWeightsStartSmallerByTheNumberOfLayers) {
  const auto largest = [](const TranslationTransformerOptions& options, const char* name) {
    return State(*Pipeline(models::translation_transformer(options), PipelineOptions(1)))[name]
        .abs()
        .max()
        .item<double>();
  };
  for (const char* name : {"encoder1.feed_forward.wide.weight", "decoder0.feed_forward.narrow.weight"}) {
    EXPECT_NEAR(largest(tiny().scale_feed_forward(true), name), largest(tiny(), name) / 4, 1e-6);
  }
  const char* const attention = "encoder1.attention.out.weight";
  EXPECT_EQ(largest(tiny().scale_feed_forward(true), attention), largest(tiny(), attention));
}

TEST(TranslationTransformer, RefusesWhatDoesNotFit) {
  EXPECT_THROW(models::translation_transformer(tiny().num_heads(5)), InvalidArgument);
  EXPECT_THROW(models::translation_transformer(tiny().num_layers(0)), InvalidArgument);
  EXPECT_THROW(models::translation_transformer(tiny().logit_clip(-1)), InvalidArgument);
  Pipeline pipeline = evaluating(models::translation_transformer(tiny()));
  const TranslationDecoder decoder(*pipeline);
  EXPECT_THROW(decoder.encode(at::zeros({1, 13}, at::kLong)), InvalidArgument);
  EXPECT_THROW(decoder.encode(at::zeros({1, 3})), InvalidArgument);
  TranslationDecoder::State state = decoder.encode(at::ones({2, 3}, at::kLong));
  EXPECT_THROW(decoder.next_token_log_probs(at::zeros({3}, at::kLong), state), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::test
