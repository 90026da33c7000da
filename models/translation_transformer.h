// The encoder-decoder Transformer T(L, H, A) for translation, as one chain.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/gpipe.h"
#include "models/attention.h"

namespace gpipe::models {

struct TranslationTransformerOptions {
  // L, H and A of the paper: layers of the encoder, and as many of the decoder; feed-forward width; heads.
  TranslationTransformerOptions(std::int64_t num_layers, std::int64_t feed_forward_width, std::int64_t num_heads)
      : num_layers_(num_layers), feed_forward_width_(feed_forward_width), num_heads_(num_heads) {}

  TORCH_ARG(std::int64_t, num_layers);
  TORCH_ARG(std::int64_t, feed_forward_width);
  TORCH_ARG(std::int64_t, num_heads);
  TORCH_ARG(std::int64_t, width) = 1024;
  // Of each head; 0 means width / num_heads. The paper's sizes come out with 64: 32 heads are then wider than 16.
  TORCH_ARG(std::int64_t, head_width) = 0;
  // Sources and targets share the vocabulary.
  TORCH_ARG(std::int64_t, vocabulary_size) = 64000;
  TORCH_ARG(std::int64_t, padding_id) = 0;
  // The longest sentence it takes, in tokens.
  TORCH_ARG(std::int64_t, max_length) = 1024;
  TORCH_ARG(double, dropout) = 0.1;
  // One table for sources, targets and the head, else three.
  TORCH_ARG(bool, tie_embeddings) = true;
  // What deep models need to stay stable: initial feed-forward weights divided by the number of layers (of encoder and
  // decoder together), and logits clipped to [-logit_clip, logit_clip]; 0 clips nothing.
  TORCH_ARG(bool, scale_feed_forward) = false;
  TORCH_ARG(double, logit_clip) = 0;
};

// Layers: source_embedding, encoder0, …, encoder_norm, target_embedding, decoder0, …, decoder_norm, head. Source ids
// [N, S] and target ids [N, T] go in, int64, padded at the end of each sentence; the target begins with the token that
// starts a sentence. Logits [N, T, V] come out, those at position t being of target token t + 1. Between layers travel
//
//   encoder   (state [N, S, width], source padding [N, S], target ids)
//   decoder   (state [N, T, width], memory [N, S, width], source padding)
//
// A sentence's logits do not depend on how much its batch is padded. Throws InvalidArgument for options it cannot be
// built from.
LayerChain translation_transformer(const TranslationTransformerOptions& options);

class SourceEmbeddingImpl;
class EncoderLayerImpl;
class EncoderNormImpl;
class TargetEmbeddingImpl;
class DecoderLayerImpl;
class TranslationHeadImpl;

// Translates token by token with a trained model, without the pipeline: what a beam search calls. The parameters stay
// shared with the model. Runs without gradient and without dropout, whatever mode the model is in.
//
//   TranslationDecoder::State state = decoder.encode(source);             // a row for each sentence
//   state.select(rows);                                                   // a row for each hypothesis
//   while (…) {
//     const at::Tensor scores = decoder.next_token_log_probs(last, state);  // [rows, V]
//     …                                                                   // choose
//     state.select_targets(chosen_rows);
//   }
//
// Thread-compatible.
class TranslationDecoder {
 public:
  // A pipeline made of translation_transformer, or a module that has its layers as children. Throws InvalidArgument for
  // another.
  explicit TranslationDecoder(const torch::nn::Module& model);

  // Hypotheses, one a row: what the decoder has read so far.
  struct State {
    std::int64_t length = 0;         // tokens read
    at::Tensor source_bias;          // of padding
    std::vector<KeyValues> sources;  // by layer
    std::vector<KeyValues> targets;  // by layer

    std::int64_t num_rows() const { return source_bias.size(0); }
    // Keeps these rows, in this order; a row may come several times.
    void select(const at::Tensor& rows);
    // The same where the number of rows stays and each takes the place of one of the same source, as in a step of a
    // beam search: leaves out the copy of what is known of the sources.
    void select_targets(const at::Tensor& rows);
  };

  // Source ids [N, S], padded at the end.
  State encode(const at::Tensor& source) const;

  // Appends a token to each row, [rows] or several, [rows, T]; the first is the one that starts a sentence. Returns the
  // log-probabilities [rows, V] of the token after.
  at::Tensor next_token_log_probs(const at::Tensor& ids, State& state) const;

 private:
  std::shared_ptr<SourceEmbeddingImpl> source_embedding_;
  std::vector<std::shared_ptr<EncoderLayerImpl>> encoder_;
  std::shared_ptr<EncoderNormImpl> encoder_norm_;
  std::shared_ptr<TargetEmbeddingImpl> target_embedding_;
  std::vector<std::shared_ptr<DecoderLayerImpl>> decoder_;
  std::shared_ptr<torch::nn::LayerNormImpl> decoder_norm_;
  std::shared_ptr<TranslationHeadImpl> head_;
};

}  // namespace gpipe::models
