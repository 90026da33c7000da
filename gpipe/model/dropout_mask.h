// The elements of a dropout mask. Without torch, because this loop is worth all optimizations of the compiler.
#pragma once

#include <cstdint>

namespace gpipe::detail {

// Zero, with probability `p`, or 1 / (1 - p) for each of the sample's elements. See Note [Dropout mask].
void fill_sample(float* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p);
void fill_sample(double* mask, std::int64_t size, std::uint64_t key, std::uint64_t sample, double p);

}  // namespace gpipe::detail
