// Rematerialization in a stage that holds several micro-batches between their forward and their backward.
#pragma once

#include <cstdint>
#include <optional>

#include "gpipe/plan/rematerialization_trades.h"

namespace gpipe {

// Note [One peak, the others keep]
// One micro-batch works at a time; the others hold what they keep between forward and backward. A stage that holds h of
// them peaks at (h - 1) kept_bytes + peak_bytes. So what is kept in the first forward weighs more than what is kept
// again in the backward, and the best of one micro-batch is not the best of several. For each of a number of peaks, the
// ways through the first forward within it: what they keep against the recompute that follows.

struct HeldRematerialization {
  Rematerialization rematerialization;  // of blocks
  bool is_exact = true;                 // all peaks were tried, and no way was left out
};

// The fastest found for `num_held` micro-batches within `bytes`; none if there is none.
std::optional<HeldRematerialization> held_within(const RematerializationTrades& trades, std::int64_t bytes,
                                                 int num_held);

// Bytes for which `held_within` finds one, the least found; 2^63 - 1 if even that is not enough.
std::int64_t least_held_bytes(const RematerializationTrades& trades, int num_held);

}  // namespace gpipe
