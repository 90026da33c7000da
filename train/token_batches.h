// Sequences of token ids as tensors: padded to the longest, shifted for the next-token loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"

namespace gpipe::train {

using TokenSequence = std::vector<std::int32_t>;

// [N, longest], int64, shorter ones filled up with `pad`.
at::Tensor to_padded(const std::vector<const TokenSequence*>& sequences, std::int32_t pad);

// The mean cross-entropy over the tokens of the mini-batch that count: targets that are `ignored`, such as padding, do
// not. Logits [N, T, V], targets [N, T].
PipelineImpl::Loss token_loss(double label_smoothing, std::int64_t ignored);

// Sum over the tokens that count.
double summed_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, std::int64_t ignored);

}  // namespace gpipe::train
