// The best rematerialization of a chain under a memory limit: the least recompute that fits.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"

namespace gpipe {

// The costs of the layers [begin, end) as a stage. In a profile, a tensor between two layers that is kept counts with
// the layer that made it; here with the layer behind it, so that it counts where the first is dropped and the second is
// not. The input of the stage counts in neither.
//
// REQUIRES: `profile` has passed check_profile.
std::vector<RematerializationCosts> rematerialization_costs(const Profile& profile, int begin, int end);

struct RematerializationPlan {
  Rematerialization rematerialization;
  RematerializationOutcome outcome;  // what `evaluate` says of it
  // No other is faster within the limit. If false, choices were left out to save time; what was found fits all the
  // same.
  bool is_exact = true;
};

// The fastest rematerialization that peaks at `limit_bytes` or less; drops nothing if that fits. Throws
// InvalidArgument for costs that `evaluate` refuses and for a negative limit, and InfeasibleError if nothing fits:
// missing_bytes is what the limit lacks of the least that would do.
//
// A stage that holds `num_held` micro-batches between their forward and their backward has a limit for all of them:
// (num_held - 1) kept_bytes + peak_bytes. With more than one, some 128 peaks are tried, which may take as long as
// finding the trades; exact if sizes are multiples of a number that goes no more than 64 times into the limit.
//
// Exact if all sizes are multiples of a number of bytes that goes no more than nine hundred times into what keeping
// everything takes, and often otherwise. Beyond 64 layers neighbours are joined into blocks that are dropped or kept
// together. Takes O(n^3) times the number of trades: thirty milliseconds for 30 layers, about a second at worst.
RematerializationPlan rematerialize(const std::vector<RematerializationCosts>& costs, std::int64_t limit_bytes,
                                    int num_held = 1);

}  // namespace gpipe
