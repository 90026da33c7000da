// Attention and its neighbours once more, sentence by sentence and head by head: what the Transformers are held
// against.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/models/state.h"

namespace gpipe::test {

// Queries [T, heads * h], keys and values [S, heads * h].
inline at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int heads,
                                  bool causal) {
  std::vector<at::Tensor> mixed;
  const std::int64_t width = query.size(1) / heads;
  for (int head = 0; head < heads; ++head) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, head * width, width); };
    at::Tensor scores = part(query).mm(part(key).t()) / std::sqrt(static_cast<double>(width));
    if (causal) {
      const at::Tensor hidden = at::ones({scores.size(0), scores.size(1)}).tril().eq(0);
      scores = scores.masked_fill(hidden, -INFINITY);
    }
    mixed.push_back(at::softmax(scores, 1).mm(part(value)));
  }
  return at::cat(mixed, 1);
}

inline at::Tensor plain_self_attention(const State& state, const at::Tensor& x, const std::string& name, int heads,
                                       bool causal) {
  const auto parts = state.linear(x, name + ".query_key_value").chunk(3, 1);
  return state.linear(plain_attention(parts[0], parts[1], parts[2], heads, causal), name + ".out");
}

inline at::Tensor plain_cross_attention(const State& state, const at::Tensor& x, const at::Tensor& memory,
                                        const std::string& name, int heads) {
  const auto parts = state.linear(memory, name + ".key_value").chunk(2, 1);
  const at::Tensor query = state.linear(x, name + ".query");
  return state.linear(plain_attention(query, parts[0], parts[1], heads, false), name + ".out");
}

inline at::Tensor plain_positions(std::int64_t length, std::int64_t width) {
  const at::Tensor table = at::empty({length, width});
  for (std::int64_t position = 0; position < length; ++position) {
    for (std::int64_t column = 0; column < width; ++column) {
      const double power = static_cast<double>(column - column % 2) / static_cast<double>(width);
      const double angle = static_cast<double>(position) / std::pow(10000.0, power);
      table[position][column] = column % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  }
  return table;
}

// Ids [T] to [T, width].
inline at::Tensor plain_embedding(const at::Tensor& table, const at::Tensor& ids) {
  return table.index_select(0, ids) * std::sqrt(static_cast<double>(table.size(1)));
}

}  // namespace gpipe::test
