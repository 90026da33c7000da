// The order in which an epoch goes through its samples.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "data/random.h"

namespace gpipe::data {

// Every order is as likely as the others, as far as 64 bits of state go.
template <typename Value>
void shuffle(std::vector<Value>& values, Random& random) {
  for (std::size_t end = values.size(); end > 1; --end) std::swap(values[end - 1], values[random.below(end)]);
}

// 0 to num_samples - 1, shuffled: a function of (seed, epoch). REQUIRES: num_samples >= 0.
std::vector<std::int64_t> shuffled_order(std::int64_t num_samples, std::uint64_t seed, std::int64_t epoch);

}  // namespace gpipe::data
