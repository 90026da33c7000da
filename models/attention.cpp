#include "models/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "models/checks.h"

namespace gpipe::models {
namespace {

// exp(-1e9) is exactly 0 in every floating-point type, and -1e9 itself is finite in bfloat16, too.
constexpr double kHidden = -1e9;

// [N, T, parts * heads * head_width] to `parts` tensors of [N, heads, T, head_width].
std::vector<at::Tensor> split_heads(const at::Tensor& projected, const AttentionOptions& options, std::int64_t parts) {
  const at::Tensor heads =
      projected.view({projected.size(0), projected.size(1), parts, options.num_heads(), options.width_of_head()});
  return heads.permute({2, 0, 3, 1, 4}).unbind(0);
}

at::Tensor flatten_heads(const at::Tensor& heads) {
  return heads.reshape({heads.size(0) * heads.size(1), heads.size(2), heads.size(3)});
}

// Queries, keys and values [N, heads, T or length, head_width]; returns [N, T, heads * head_width].
at::Tensor attend(const at::Tensor& queries, const KeyValues& memory, const at::Tensor& bias,
                  gpipe::nn::Dropout& dropout) {
  const std::int64_t num_rows = queries.size(0);
  const std::int64_t num_heads = queries.size(1);
  const std::int64_t num_queries = queries.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(3)));
  at::Tensor scores = at::bmm(flatten_heads(queries * scale), flatten_heads(memory.keys).transpose(1, 2));
  scores = scores.view({num_rows, num_heads, num_queries, memory.keys.size(2)});
  if (bias.defined()) scores = scores.add_(bias);
  const at::Tensor weights = dropout(at::softmax(scores, -1));
  const at::Tensor mixed = at::bmm(weights.flatten(0, 1), flatten_heads(memory.values));
  return mixed.view({num_rows, num_heads, num_queries, -1}).transpose(1, 2).flatten(2);
}

std::int64_t inner_width(const AttentionOptions& options) { return options.num_heads() * options.width_of_head(); }

// Into `parts` projections of all heads.
torch::nn::Linear make_projection(const AttentionOptions& options, std::int64_t parts) {
  torch::nn::Linear linear(
      torch::nn::LinearOptions(options.width(), parts * inner_width(options)).bias(options.bias()));
  init_linear(linear, 1, parts);
  return linear;
}

torch::nn::Linear make_out(const AttentionOptions& options) {
  torch::nn::Linear linear(torch::nn::LinearOptions(inner_width(options), options.width()).bias(options.bias()));
  init_linear(linear);
  return linear;
}

torch::nn::Linear make_half(const FeedForwardOptions& options, std::int64_t from, std::int64_t to) {
  torch::nn::Linear linear(torch::nn::LinearOptions(from, to).bias(options.bias()));
  init_linear(linear, options.init_divisor());
  return linear;
}

const AttentionOptions& checked(const AttentionOptions& options) {
  options.check();
  return options;
}

}  // namespace

void AttentionOptions::check() const {
  check_at_least("width", width_, 1);
  check_at_least("num_heads", num_heads_, 1);
  check_at_least("head_width", head_width_, 0);
  check_dropout(dropout_);
  if (head_width_ == 0 && width_ % num_heads_ != 0) {
    throw InvalidArgument(fmt::format(
        "width is {}, which {} heads do not divide; change one of them, or set head_width", width_, num_heads_));
  }
}

KeyValues KeyValues::select(const at::Tensor& rows) const {
  if (!keys.defined()) return {};
  return {keys.index_select(0, rows), values.index_select(0, rows)};
}

at::Tensor causal_bias(std::int64_t num_queries, std::int64_t length, const at::TensorOptions& options) {
  if (num_queries == 1) return {};
  return at::full({num_queries, length}, kHidden, options.requires_grad(false)).triu_(length - num_queries + 1);
}

at::Tensor padding_bias(const at::Tensor& is_padding, const at::TensorOptions& options) {
  return is_padding.to(options.requires_grad(false)).mul_(kHidden).unsqueeze(1).unsqueeze(1);
}

SelfAttentionImpl::SelfAttentionImpl(const AttentionOptions& options_)
    : options(checked(options_)),
      query_key_value(register_module("query_key_value", make_projection(options, 3))),
      out(register_module("out", make_out(options))),
      dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& input, const at::Tensor& bias) {
  const auto parts = split_heads(query_key_value(input), options, 3);
  return out(attend(parts[0], {parts[1], parts[2]}, bias, dropout));
}

at::Tensor SelfAttentionImpl::extend(const at::Tensor& input, KeyValues& past) {
  const auto parts = split_heads(query_key_value(input), options, 3);
  past.keys = past.keys.defined() ? at::cat({past.keys, parts[1]}, 2) : parts[1].contiguous();
  past.values = past.values.defined() ? at::cat({past.values, parts[2]}, 2) : parts[2].contiguous();
  const at::Tensor bias = causal_bias(input.size(1), past.keys.size(2), input.options());
  return out(attend(parts[0], past, bias, dropout));
}

CrossAttentionImpl::CrossAttentionImpl(const AttentionOptions& options_)
    : options(checked(options_)),
      query(register_module("query", make_projection(options, 1))),
      key_value(register_module("key_value", make_projection(options, 2))),
      out(register_module("out", make_out(options))),
      dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

at::Tensor CrossAttentionImpl::forward(const at::Tensor& input, const at::Tensor& memory, const at::Tensor& bias) {
  return look_at(input, project(memory), bias);
}

KeyValues CrossAttentionImpl::project(const at::Tensor& memory) {
  const auto parts = split_heads(key_value(memory), options, 2);
  return {parts[0], parts[1]};
}

at::Tensor CrossAttentionImpl::look_at(const at::Tensor& input, const KeyValues& memory, const at::Tensor& bias) {
  return out(attend(split_heads(query(input), options, 1).front(), memory, bias, dropout));
}

FeedForwardImpl::FeedForwardImpl(const FeedForwardOptions& options_)
    : options(options_),
      wide(register_module("wide", make_half(options, options.width(), options.inner_width()))),
      narrow(register_module("narrow", make_half(options, options.inner_width(), options.width()))),
      dropout(register_module("dropout", gpipe::nn::Dropout(options.dropout()))) {}

at::Tensor FeedForwardImpl::forward(const at::Tensor& input) {
  const at::Tensor x = wide(input);
  return narrow(dropout(options.gelu() ? at::gelu(x) : at::relu(x)));
}

void init_linear(torch::nn::Linear& linear, double divisor, std::int64_t parts) {
  const at::NoGradGuard no_grad;
  const auto fans = static_cast<double>(linear->weight.size(0) / parts + linear->weight.size(1));
  const double bound = std::sqrt(6 / fans) / divisor;
  linear->weight.uniform_(-bound, bound);
  if (linear->bias.defined()) linear->bias.zero_();
}

void init_embedding(torch::nn::Embedding& embedding) {
  const at::NoGradGuard no_grad;
  embedding->weight.normal_(0, 1 / std::sqrt(static_cast<double>(embedding->weight.size(1))));
}

void init_head(torch::nn::LinearImpl& head) {
  const at::NoGradGuard no_grad;
  head.weight.normal_(0, 1 / std::sqrt(static_cast<double>(head.weight.size(1))));
  if (head.bias.defined()) head.bias.zero_();
}

at::Tensor SinusoidalPositions::rows(std::int64_t first, std::int64_t count, std::int64_t width,
                                     const at::TensorOptions& options) {
  if (!table_.defined() || table_.size(0) < first + count || table_.size(1) != width ||
      table_.is_meta() != options.device().is_meta()) {
    const at::NoGradGuard no_grad;
    // Computed by the CPU whatever the device, so that the values do not depend on it.
    const at::TensorOptions doubles =
        at::TensorOptions(at::kDouble).device(options.device().is_meta() ? at::kMeta : at::kCPU);
    // In powers of two, so that decoding word by word does not make it anew each time.
    std::int64_t length = 64;
    while (length < first + count) length *= 2;
    const at::Tensor position = at::arange(length, doubles).unsqueeze(1);
    const at::Tensor exponent =
        at::arange((width + 1) / 2, doubles) * (-2 * std::log(10000.0) / static_cast<double>(width));
    const at::Tensor angle = position * exponent.exp().unsqueeze(0);
    table_ = at::stack({angle.sin(), angle.cos()}, 2).flatten(1).narrow(1, 0, width).to(at::kFloat).contiguous();
  }
  return table_.narrow(0, first, count).to(options.requires_grad(false));
}

void check_ids(const char* what, const at::Tensor& ids, std::int64_t max_length) {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    throw InvalidArgument(fmt::format("{} takes int64 ids of [sentences, length], got {} of {} dimensions", what,
                                      c10::toString(ids.scalar_type()), ids.dim()));
  }
  if (ids.size(1) > max_length) {
    throw InvalidArgument(fmt::format("{} got {} tokens, but max_length is {}; cut the text or raise max_length", what,
                                      ids.size(1), max_length));
  }
}

}  // namespace gpipe::models
