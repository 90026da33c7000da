// Rematerializer: all that can be traded in one chain, for many limits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/plan/rematerialization.h"
#include "gpipe/plan/rematerialize.h"

namespace gpipe::detail {

class RematerializationTrades;

// Every trade of bytes against seconds of one chain, found once: a plan for a limit then takes microseconds. A value
// that is cheap to copy. Thread-compatible.
class Rematerializer {
 public:
  // Throws as `check_rematerialization_costs` does.
  explicit Rematerializer(std::vector<RematerializationCosts> costs);

  // See `rematerialize`; what its InfeasibleError says to be missing is what the limit lacks of least_bytes().
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

}  // namespace gpipe::detail
