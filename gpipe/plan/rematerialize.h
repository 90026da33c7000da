// The best rematerialization of a chain under a memory limit: the least recompute that fits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/plan/rematerialization.h"

namespace gpipe {

class RematerializationTrades;

struct RematerializationPlan {
  Rematerialization rematerialization;
  RematerializationOutcome outcome;  // what `evaluate` says of it
  // No other is faster within the limit. If false, choices were left out to save time; what was found fits all the
  // same.
  bool is_exact = true;
};

// Every trade of bytes against seconds of one chain, found once: a plan for a limit then takes microseconds. A value
// that is cheap to copy. Thread-compatible.
//
// Exact if all sizes are multiples of a number of bytes that goes no more than nine hundred times into what keeping
// everything takes, and often otherwise. Beyond 64 layers neighbours are joined into blocks that are dropped or kept
// together. O(n^3) times the number of trades: thirty milliseconds for 30 layers, about a second at worst.
class Rematerializer {
 public:
  // Throws as `check_rematerialization_costs` does.
  explicit Rematerializer(std::vector<RematerializationCosts> costs);

  // The fastest that peaks at `limit_bytes` or less; drops nothing if that fits. Throws InvalidArgument if the limit is
  // negative; InfeasibleError if nothing fits: missing_bytes is what the limit lacks of least_bytes().
  //
  // A stage that holds `num_held` micro-batches between their forward and their backward has a limit for all of them:
  // (num_held - 1) kept_bytes + peak_bytes. With more than one, some 128 peaks are tried, which may take as long as
  // finding the trades; exact if sizes are multiples of a number that goes no more than 64 times into the limit.
  RematerializationPlan plan(std::int64_t limit_bytes, int num_held = 1) const;

  // A limit that `plan` takes; for one micro-batch held and up to 64 layers no rematerialization peaks lower.
  std::int64_t least_bytes(int num_held = 1) const;

  // For a report: from the least bytes to those of keeping everything, each faster than the one before, at most
  // `max_plans` of them, at even steps of bytes. Throws InvalidArgument if `max_plans` is below 2.
  std::vector<RematerializationPlan> frontier(int max_plans = 16) const;

 private:
  std::vector<RematerializationCosts> costs_;
  std::vector<int> block_begin_;  // first layer of each block, then the number of layers
  std::shared_ptr<const RematerializationTrades> trades_;
};

// One plan for one limit, as Rematerializer makes it.
RematerializationPlan rematerialize(const std::vector<RematerializationCosts>& costs, std::int64_t limit_bytes,
                                    int num_held = 1);

}  // namespace gpipe
