// What a stage made of consecutive layers takes: the only place that says so.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/plan/partition.h"
#include "gpipe/plan/passing_skips.h"
#include "gpipe/plan/profile.h"

namespace gpipe {

// Note [Ticks]
// Sums of doubles depend on their order, so "equal" and "least" would depend on rounding: ten equal layers would not be
// cut evenly. The search therefore counts in ticks: each layer's and each message's seconds are rounded once to a whole
// number of ticks, and every sum, difference and comparison of ticks is exact. A tick is the power of two that makes
// everything together about 2^60 ticks, finer than the rounding of a double that holds the sum. Seconds that are whole
// numbers, and add up to less than 2^60, are whole numbers of ticks.
using Ticks = std::int64_t;

class IntervalSeconds {
 public:
  // REQUIRES: `profile` and `options` have passed the checks of `partition`; both outlive this. Throws InvalidArgument
  // if the seconds are too many to add up.
  IntervalSeconds(const Profile& profile, const PartitionOptions& options);

  // The stages that begin at one layer.
  class Row {
   public:
    // Does not fall when `end` grows, and is at most ticks(end).
    Ticks compute_ticks(int end) const { return compute_[end] - compute_begin_; }
    Ticks ticks(int end) const {
      return compute_ticks(end) + sent_back_ + boundary_[end] - directions_ * passing_[end];
    }

   private:
    friend class IntervalSeconds;
    const Ticks* compute_;
    const Ticks* boundary_;
    const std::int64_t* passing_;
    Ticks compute_begin_;
    Ticks sent_back_;
    Ticks directions_;
  };

  Row row(int stage, int begin) const;
  Ticks ticks(int stage, int begin, int end) const { return row(stage, begin).ticks(end); }

  // The same in seconds, added up from the layers: what a report shows.
  double seconds(int stage, int begin, int end) const;

  // No partition's sum of ticks is less.
  Ticks least_sum() const;

  int num_layers() const { return static_cast<int>(profile_.layers.size()); }
  int num_stages() const { return options_.num_stages; }

 private:
  double layer_seconds(int stage, const LayerProfile& layer) const;
  double message_seconds(std::int64_t bytes) const;
  void find_kinds();
  void choose_tick();
  Ticks to_ticks(double seconds) const;
  void add_compute();
  void add_messages();

  const Profile& profile_;
  const PartitionOptions& options_;
  int tick_exponent_ = 0;                    // a tick is 2^tick_exponent_ seconds
  std::vector<int> kind_of_stage_;           // stages of one kind have the same worker_speed and recompute_share
  std::vector<int> stage_of_kind_;           // one of them
  std::vector<std::vector<Ticks>> compute_;  // of each kind, prefix sums over the layers
  std::vector<Ticks> boundary_;              // all messages that cross boundary b one way
  PassingSkips passing_;
};

}  // namespace gpipe
