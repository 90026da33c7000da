// A decoder-only Transformer language model.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/gpipe.h"
#include "models/attention.h"

namespace gpipe::models {

struct TransformerLmOptions {
  TransformerLmOptions(std::int64_t vocabulary_size, std::int64_t num_layers)
      : vocabulary_size_(vocabulary_size), num_layers_(num_layers) {}

  TORCH_ARG(std::int64_t, vocabulary_size);
  TORCH_ARG(std::int64_t, num_layers);
  TORCH_ARG(std::int64_t, width) = 512;
  TORCH_ARG(std::int64_t, feed_forward_width) = 2048;
  TORCH_ARG(std::int64_t, num_heads) = 8;
  // The longest sequence it takes.
  TORCH_ARG(std::int64_t, max_length) = 1024;
  TORCH_ARG(double, dropout) = 0.1;
  // A table of positions that is learnt, else sines and cosines.
  TORCH_ARG(bool, learnt_positions) = false;
  // Without the biases of linear layers, the head's too, and the scale and shift of norms the parameters are exactly
  // L (4 d^2 + 2 d f) + 2 V d, for d = width and f = feed_forward_width; with them it is the paper's Transformer-L.
  TORCH_ARG(bool, bias) = true;
  TORCH_ARG(bool, norm_parameters) = true;
  // The head's weight is the embedding's.
  TORCH_ARG(bool, tie_embeddings) = false;
};

// Layers: embedding, block0, block1, …, norm, head. Ids [N, T], int64, go in; logits [N, T, V] come out, those at
// position t being of token t + 1. Throws InvalidArgument for options it cannot be built from.
LayerChain transformer_lm(const TransformerLmOptions& options);

class TransformerLmEmbeddingImpl;
class TransformerLmBlockImpl;

// Predicts token by token with a trained model, without the pipeline. The parameters stay shared with the model.
//
// Thread-compatible.
class LanguageModelDecoder {
 public:
  // A pipeline made of transformer_lm, or a module that has its layers as children. Throws InvalidArgument for another.
  explicit LanguageModelDecoder(const torch::nn::Module& model);

  // What has been read of some texts, one a row.
  struct State {
    std::int64_t length = 0;
    std::vector<KeyValues> layers;

    // Keeps these rows, in this order; a row may come several times.
    void select(const at::Tensor& rows);
  };

  // Reads on: `ids`, [N, T] with T of at least 1, continue the texts of `state`, which is empty at first. Returns the
  // logits [N, V] of the token after. Runs without gradient and without dropout, whatever mode the model is in.
  at::Tensor next_token_logits(const at::Tensor& ids, State& state) const;

 private:
  std::shared_ptr<TransformerLmEmbeddingImpl> embedding_;
  std::vector<std::shared_ptr<TransformerLmBlockImpl>> blocks_;
  std::shared_ptr<torch::nn::LayerNormImpl> norm_;
  std::shared_ptr<torch::nn::LinearImpl> head_;
};

}  // namespace gpipe::models
