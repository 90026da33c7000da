// The language model against a second implementation; causality; reading token by token.
#include "models/transformer_lm.h"

#include <gtest/gtest.h>

#include "tests/model/same_bits.h"
#include "tests/models/plain_attention.h"

namespace gpipe::test {
namespace {

using models::LanguageModelDecoder;
using models::TransformerLmOptions;

constexpr int kHeads = 2;

TransformerLmOptions tiny() {
  return TransformerLmOptions(17, 2).width(12).feed_forward_width(20).num_heads(kHeads).max_length(10).dropout(0.2);
}

// Logits [T, V] of one text [T].
at::Tensor plain_forward(const State& state, const TransformerLmOptions& options, const at::Tensor& ids) {
  const at::Tensor table = state["embedding.token.weight"];
  const at::Tensor positions = options.learnt_positions() ? state["embedding.position.weight"].narrow(0, 0, ids.size(0))
                                                          : plain_positions(ids.size(0), options.width());
  at::Tensor x = plain_embedding(table, ids) + positions;
  for (int block = 0; block < options.num_layers(); ++block) {
    const std::string name = "block" + std::to_string(block);
    x = x + plain_self_attention(state, state.layer_norm(x, name + ".attention_norm"), name + ".attention", kHeads,
                                 /*causal=*/true);
    const at::Tensor y = state.linear(state.layer_norm(x, name + ".feed_forward_norm"), name + ".feed_forward.wide");
    x = x + state.linear(y * 0.5 * (1 + at::erf(y / std::sqrt(2.0))), name + ".feed_forward.narrow");
  }
  x = state.layer_norm(x, "norm");
  if (options.tie_embeddings()) return at::matmul(x, table.t()) + state["head.bias"];
  return state.linear(x, "head");
}

TEST(TransformerLm, IsWhatItsFormulasSay) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = torch::randint(17, {3, 9}, torch::kLong);
  for (const TransformerLmOptions& options : {tiny(), tiny().learnt_positions(true), tiny().tie_embeddings(true),
                                              tiny().bias(false).norm_parameters(false)}) {
    Pipeline pipeline = evaluating(models::transformer_lm(options));
    const State state(*pipeline);
    const at::Tensor logits = pipeline->forward(ids);
    for (int text = 0; text < 3; ++text) expect_close(logits[text], plain_forward(state, options, ids[text]));
  }
}

TEST(TransformerLm, ALaterTokenDoesNotChangeEarlierLogits) {
  const at::NoGradGuard no_grad;
  Pipeline pipeline = evaluating(models::transformer_lm(tiny()));
  const at::Tensor ids = torch::randint(17, {2, 8}, torch::kLong);
  const at::Tensor logits = pipeline->forward(ids);
  for (int position = 1; position < 8; ++position) {
    const at::Tensor changed = ids.clone();
    changed.select(1, position).add_(1).remainder_(17);
    const at::Tensor other = pipeline->forward(changed);
    EXPECT_TRUE(same_bits(other.narrow(1, 0, position), logits.narrow(1, 0, position))) << position;
    EXPECT_FALSE(at::allclose(other.select(1, position), logits.select(1, position))) << position;
  }
}

TEST(TransformerLm, ReadingTokenByTokenGivesTheLogitsOfTheWholeText) {
  for (const TransformerLmOptions& options : {tiny(), tiny().learnt_positions(true).tie_embeddings(true)}) {
    Pipeline pipeline = evaluating(models::transformer_lm(options));
    const at::Tensor ids = torch::randint(17, {3, 10}, torch::kLong);
    const at::Tensor logits = pipeline->forward(ids).detach();
    pipeline->train();  // a decoder evaluates all the same
    const LanguageModelDecoder decoder(*pipeline);
    LanguageModelDecoder::State state;
    expect_close(decoder.next_token_logits(ids.narrow(1, 0, 4), state), logits.select(1, 3));
    for (int position = 4; position < 10; ++position) {
      expect_close(decoder.next_token_logits(ids.narrow(1, position, 1), state), logits.select(1, position));
    }
    EXPECT_EQ(state.length, 10);
    EXPECT_TRUE(pipeline->is_training());
    for (const auto& module : pipeline->modules()) EXPECT_TRUE(module->is_training());
  }
}

TEST(TransformerLm, RowsOfAStateCanBeChosen) {
  Pipeline pipeline = evaluating(models::transformer_lm(tiny()));
  const LanguageModelDecoder decoder(*pipeline);
  const at::Tensor ids = torch::randint(17, {3, 5}, torch::kLong);
  const at::Tensor logits = pipeline->forward(ids).detach().select(1, 4);
  LanguageModelDecoder::State state;
  decoder.next_token_logits(ids.narrow(1, 0, 4), state);
  const at::Tensor rows = torch::tensor({2, 0, 2, 1}, torch::kLong);
  state.select(rows);
  expect_close(decoder.next_token_logits(ids.narrow(1, 4, 1).index_select(0, rows), state),
               logits.index_select(0, rows));
}

TEST(TransformerLm, RefusesTextsThatAreTooLong) {
  Pipeline pipeline = evaluating(models::transformer_lm(tiny()));
  EXPECT_THROW(pipeline->forward(at::zeros({2, 11}, at::kLong)), Error);
  const LanguageModelDecoder decoder(*pipeline);
  LanguageModelDecoder::State state;
  decoder.next_token_logits(at::zeros({2, 8}, at::kLong), state);
  EXPECT_THROW(decoder.next_token_logits(at::zeros({2, 3}, at::kLong), state), InvalidArgument);
  EXPECT_THROW(decoder.next_token_logits(at::zeros({2, 0}, at::kLong), state), InvalidArgument);
}

TEST(TransformerLm, ADecoderRefusesAnotherModel) {
  Pipeline pipeline(LayerChain(torch::nn::Sequential(torch::nn::Linear(2, 2))), PipelineOptions(1));
  EXPECT_THROW(LanguageModelDecoder{*pipeline}, InvalidArgument);
}

TEST(TransformerLm, RefusesSizesItCannotBeBuiltFrom) {
  EXPECT_THROW(models::transformer_lm(tiny().num_heads(5)), InvalidArgument);
  EXPECT_THROW(models::transformer_lm(tiny().num_layers(0)), InvalidArgument);
  EXPECT_THROW(models::transformer_lm(tiny().vocabulary_size(0)), InvalidArgument);
  EXPECT_THROW(models::transformer_lm(tiny().dropout(-0.1)), InvalidArgument);
}

}  // namespace
}  // namespace gpipe::test
