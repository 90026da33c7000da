// How many n-grams of a text also stand in its references.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gpipe::bleu {

constexpr int kMaxOrder = 4;

// One number for each length of an n-gram, 1 to kMaxOrder.
using OrderCounts = std::array<std::int64_t, kMaxOrder>;

using Tokens = std::vector<std::string_view>;

// For each order, the n-grams of `hypothesis` that are matched: each as often as the reference that has it most often
// has it, at most. Exact for texts of any length: n-grams are compared, not their hashes. REQUIRES: `hypothesis` and
// `references` have less than 2^32 tokens in all.
OrderCounts count_matches(const Tokens& hypothesis, const std::vector<Tokens>& references);

}  // namespace gpipe::bleu
