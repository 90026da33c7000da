// What a stage made of consecutive layers holds at its peak, and which stages fit a limit.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/plan/passing_skips.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/range_max.h"
#include "gpipe/schedule/liveness.h"

namespace gpipe {

class IntervalBytes {
 public:
  // REQUIRES: `profile` has passed check_profile; optimizer_slots is at least zero.
  IntervalBytes(const Profile& profile, int optimizer_slots);

  // See Note [Peak bytes] in partition.h. Takes constant time for each `live`, does not fall when `end` grows, ends at
  // 2^63-1.
  std::int64_t bytes(const std::vector<Live>& live, int begin, int end) const;

  // No more than `bytes` of any schedule; if `is_at_work`, of any in which the stage works on a micro-batch. Does not
  // fall when `end` grows, nor when `begin` falls.
  std::int64_t least_bytes(bool is_at_work, int begin, int end) const;

  // For each first layer, the largest `end` that fits the limit; the layer itself if none does.
  std::vector<int> furthest_ends(const std::vector<Live>& live, std::int64_t limit_bytes) const;
  // The same of least_bytes.
  std::vector<int> furthest_possible_ends(bool is_at_work, std::int64_t limit_bytes) const;

  int num_layers() const { return static_cast<int>(input_.size()) - 1; }

 private:
  // Of a stage's forward, without its input, and of its backward, without what is kept of the input.
  std::int64_t forward_working_bytes(int begin, int end) const;
  std::int64_t backward_working_bytes(int begin, int end) const;

  int optimizer_slots_;
  std::vector<std::int64_t> gradients_;      // prefix sums over the layers; optimizer state is a multiple of them
  std::vector<std::int64_t> other_statics_;  // prefix sums over the layers: parameters and buffers
  std::vector<std::int64_t> activations_;    // prefix sums over the layers
  std::vector<std::int64_t> input_;          // what crosses boundary b: the activation and the skips
  std::vector<std::int64_t> kept_;           // of the activation that crosses boundary b
  std::vector<std::int64_t> first_working_;  // of each layer's forward, as the first of a stage
  RangeMax forward_working_;                 // of each layer's forward, with the activations of all layers before it
  RangeMax backward_working_;                // the same of its backward
  PassingSkips passing_;
};

// furthest_ends of one limit, computed once for each different `live`.
class FurthestEnds {
 public:
  FurthestEnds(const IntervalBytes& bytes, std::int64_t limit_bytes) : bytes_(bytes), limit_bytes_(limit_bytes) {}
  // The reference stays valid.
  const std::vector<int>& of(const std::vector<Live>& live);

 private:
  const IntervalBytes& bytes_;
  std::int64_t limit_bytes_;
  std::map<std::vector<std::pair<int, int>>, std::vector<int>> known_;
};

}  // namespace gpipe
