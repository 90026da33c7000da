// Beam search: the most likely token sequences of a model that tells the next token's log-probabilities.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace gpipe::train {

struct BeamSearchOptions {
  std::int64_t beam_size = 4;  // 1: the most likely token each time
  // A finished sequence of n tokens counts log-probability / ((5 + n) / 6) ^ length_penalty.
  double length_penalty = 0.6;
  std::int64_t begin_token = 0;
  std::int64_t end_token = 0;
};

// Log-probabilities [R, V] of what follows when each row is continued by its token. `parents` [R] are the rows of the
// call before that are continued, and `tokens` [R] by what; in the first call they are sources and begin tokens.
using NextLogProbs = std::function<at::Tensor(const at::Tensor& parents, const at::Tensor& tokens)>;

// The best sequence for each source, without begin and end; at most max_lengths[source] tokens. A sequence that does
// not end by then counts as it is. Equal inputs give equal outputs, alone or in a batch, as far as `next` does.
//
// Throws InvalidArgument on a beam below one.
std::vector<std::vector<std::int64_t>> beam_search(const std::vector<std::int64_t>& max_lengths,
                                                   const NextLogProbs& next, const BeamSearchOptions& options);

}  // namespace gpipe::train
