// Multi-head attention over [N, T, width], and what Transformers have around it.
#pragma once

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::models {

struct AttentionOptions {
  AttentionOptions(std::int64_t width, std::int64_t num_heads) : width_(width), num_heads_(num_heads) {}

  TORCH_ARG(std::int64_t, width);
  TORCH_ARG(std::int64_t, num_heads);
  // Of each head; 0 means width / num_heads. Heads need not fill the width exactly.
  TORCH_ARG(std::int64_t, head_width) = 0;
  TORCH_ARG(bool, bias) = true;
  // Of the attention weights.
  TORCH_ARG(double, dropout) = 0;

 public:
  std::int64_t width_of_head() const { return head_width_ != 0 ? head_width_ : width_ / num_heads_; }
  // Throws InvalidArgument for sizes that do not fit together.
  void check() const;
};

// What attention looks at: [N, heads, length, head_width] each; undefined when there is nothing yet.
struct KeyValues {
  at::Tensor keys;
  at::Tensor values;

  // Rows along N, in this order; a row may come several times or not at all.
  KeyValues select(const at::Tensor& rows) const;
};

// A bias is added to the scores before the softmax: 0 where a query may look, and a number so low that its weight is
// exactly 0 where it may not. A query that may look nowhere looks everywhere alike, and stays finite.

// [T, length]: each of the last T of `length` positions looks at itself and what is before it. Undefined when T is 1:
// then there is nothing to hide.
at::Tensor causal_bias(std::int64_t num_queries, std::int64_t length, const at::TensorOptions& options);
// [N, 1, 1, length] from a boolean [N, length] that is true at padding.
at::Tensor padding_bias(const at::Tensor& is_padding, const at::TensorOptions& options);

// Of a sequence to itself.
class SelfAttentionImpl : public torch::nn::Module {
 public:
  explicit SelfAttentionImpl(const AttentionOptions& options_);

  // The bias may be undefined.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& bias);
  // The input continues a sequence of which `past` has the keys and values; they are added to. Causal.
  at::Tensor extend(const at::Tensor& input, KeyValues& past);

  AttentionOptions options;
  torch::nn::Linear query_key_value;
  torch::nn::Linear out;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(SelfAttention);

// Of a sequence to another one, the memory.
class CrossAttentionImpl : public torch::nn::Module {
 public:
  explicit CrossAttentionImpl(const AttentionOptions& options_);

  at::Tensor forward(const at::Tensor& input, const at::Tensor& memory, const at::Tensor& bias);
  // The same in two parts: a memory is projected once and looked at many times.
  KeyValues project(const at::Tensor& memory);
  at::Tensor look_at(const at::Tensor& input, const KeyValues& memory, const at::Tensor& bias);

  AttentionOptions options;
  torch::nn::Linear query;
  torch::nn::Linear key_value;
  torch::nn::Linear out;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(CrossAttention);

struct FeedForwardOptions {
  FeedForwardOptions(std::int64_t width, std::int64_t inner_width) : width_(width), inner_width_(inner_width) {}

  TORCH_ARG(std::int64_t, width);
  TORCH_ARG(std::int64_t, inner_width);
  TORCH_ARG(bool, bias) = true;
  // Of the inner activations.
  TORCH_ARG(double, dropout) = 0;
  // GELU, else ReLU.
  TORCH_ARG(bool, gelu) = false;
  // The initial weights are divided by it.
  TORCH_ARG(double, init_divisor) = 1;
};

class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const FeedForwardOptions& options_);

  at::Tensor forward(const at::Tensor& input);

  FeedForwardOptions options;
  torch::nn::Linear wide;
  torch::nn::Linear narrow;
  gpipe::nn::Dropout dropout;
};
TORCH_MODULE(FeedForward);

// Xavier's uniform initialisation divided by `divisor`; biases zero. The rows of several projections in one, `parts` of
// them, get what each would have got by itself.
void init_linear(torch::nn::Linear& linear, double divisor = 1, std::int64_t parts = 1);

// Normal, of variance 1 / width: times sqrt(width) it is an embedding, as it is a head.
void init_embedding(torch::nn::Embedding& embedding);
void init_head(torch::nn::LinearImpl& head);

// Sines and cosines of positions, which need no parameters. Rows are made when they are first asked for.
//
// Confined to its worker.
class SinusoidalPositions {
 public:
  // [count, width] from position `first` on.
  at::Tensor rows(std::int64_t first, std::int64_t count, std::int64_t width, const at::TensorOptions& options);

 private:
  at::Tensor table_;
};

// Throws InvalidArgument unless the ids are int64 of two dimensions and no longer than `max_length`.
void check_ids(const char* what, const at::Tensor& ids, std::int64_t max_length);

}  // namespace gpipe::models
