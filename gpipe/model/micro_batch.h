// Micro-batches: slices of a mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe {

// What travels between layers: one tensor, or several in order. Some may be undefined, integer or without gradient.
using Tensors = std::vector<at::Tensor>;

// Of those that are defined, each counted as often as it occurs.
std::int64_t bytes_of(const Tensors& tensors);

struct MicroBatch {
  Tensors tensors;
  std::int64_t first_sample = 0;
  std::int64_t num_samples = 0;
};

// Cuts every defined tensor of `batch` along its first dimension into min(N, num_micro_batches) slices whose sizes
// differ by at most one, the larger ones first, as tensor_split does. A tensor named in `replicated` (by its position)
// goes whole to every micro-batch; so do undefined ones. Slices share memory with the batch.
//
// Throws InvalidArgument if no tensor is to be split, if the tensors have different numbers of rows (naming both), or
// if there is no row at all; it calls the batch `what`.
std::vector<MicroBatch> split_batch(const Tensors& batch, int num_micro_batches,
                                    const std::vector<int>& replicated = {}, const std::string& what = "batch");

namespace detail {

// The same slices of that many rows, without tensors.
std::vector<MicroBatch> split_rows(std::int64_t rows, int num_micro_batches);

}  // namespace detail

// The number of rows that a batch has; -1 if it has no tensor that could be split.
std::int64_t num_rows(const Tensors& batch, const std::vector<int>& replicated = {});

}  // namespace gpipe
