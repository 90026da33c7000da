// What a stage made of consecutive layers takes and holds: the only place that says so.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/plan/partition.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/text/byte_text.h"

namespace gpipe::detail {

// Skips that pass over a stage are stashed before it and popped behind it, and cost it nothing. This is what the skips
// that cross each boundary weigh, and those of them that pass over a whole interval of layers. Boundary b lies in front
// of layer b.
//
//   boundary  0   1   2   3   4   5
//   layer       0   1   2   3   4
//                   └───────┘       stashed by 1, popped by 3: crosses 2 and 3, passes over [2, 3)
//
// A stage [begin, end) takes in crossing(begin) - passing(begin, end), gives out crossing(end) - passing(begin, end).
class PassingSkips {
 public:
  PassingSkips() = default;
  // One weight per skip. Takes time and memory of layers²; next to none if all weigh nothing.
  PassingSkips(const Profile& profile, const std::vector<std::int64_t>& weights);

  std::int64_t crossing(int boundary) const { return crossing_[boundary]; }
  std::int64_t passing(int begin, int end) const { return row(begin)[end]; }

  // row(begin)[end] == passing(begin, end) for begin <= end.
  const std::int64_t* row(int begin) const {
    return passing_.empty() ? no_skips_.data() : passing_.data() + offset(begin) - begin;
  }

 private:
  // The rows of a triangle, each beginning at its diagonal.
  std::size_t offset(std::size_t begin) const { return begin * crossing_.size() - begin * (begin - 1) / 2; }

  std::vector<std::int64_t> crossing_;
  std::vector<std::int64_t> no_skips_;
  std::vector<std::int64_t> passing_;
};

// The largest of any consecutive values, in constant time.
class RangeMax {
 public:
  RangeMax() = default;
  // Takes time and memory of n log n.
  explicit RangeMax(std::vector<std::int64_t> values) {
    largest_.push_back(std::move(values));
    for (std::size_t length = 1; 2 * length <= largest_[0].size(); length *= 2) {
      const std::vector<std::int64_t>& half = largest_.back();
      std::vector<std::int64_t> whole(half.size() - length);
      for (std::size_t begin = 0; begin < whole.size(); ++begin) {
        whole[begin] = std::max(half[begin], half[begin + length]);
      }
      largest_.push_back(std::move(whole));
    }
    power_.assign(largest_[0].size() + 1, 0);
    for (std::size_t length = 2; length < power_.size(); ++length) power_[length] = power_[length / 2] + 1;
  }

  // REQUIRES: begin < end.
  std::int64_t of(std::size_t begin, std::size_t end) const {
    const int power = power_[end - begin];
    return std::max(largest_[power][begin], largest_[power][end - (std::size_t{1} << power)]);
  }

 private:
  std::vector<std::vector<std::int64_t>> largest_;  // [p][b]: of the 2^p values from b on
  std::vector<int> power_;                          // of each length, the p of the largest 2^p in it
};

// Note [Ticks]
// Sums of doubles depend on their order, so "equal" and "least" would depend on rounding: ten equal layers would not be
// cut evenly. The search therefore counts in ticks: each layer's and each message's seconds are rounded once to a whole
// number of ticks, and every sum, difference and comparison of ticks is exact. A tick is the power of two that makes
// everything together about 2^60 ticks, finer than the rounding of a double that holds the sum. Seconds that are whole
// numbers, and add up to less than 2^60, are whole numbers of ticks.
using Ticks = std::int64_t;

// What a stage takes.
class IntervalSeconds {
 public:
  // REQUIRES: `profile` and `options` have passed the checks of `partition`; both outlive this. Throws InvalidArgument
  // if the seconds are too many to add up.
  IntervalSeconds(const Profile& profile, const PartitionOptions& options);

  // The stages that begin at one layer.
  struct Row {
    const Ticks* compute;          // prefix sums over the layers
    const Ticks* boundary;         // of the link behind the stage
    const Ticks* passing_forward;  // of the link behind the stage
    const Ticks* passing_back;     // of the link in front of it
    Ticks compute_begin;
    Ticks sent_back;
    Ticks num_back;  // 1, or 0 if there is no backward

    // Does not fall when `end` grows, and is at most ticks(end).
    Ticks compute_ticks(int end) const { return compute[end] - compute_begin; }
    Ticks ticks(int end) const {
      return compute_ticks(end) + sent_back + boundary[end] - passing_forward[end] - num_back * passing_back[end];
    }
  };
  Row row(int stage, int begin) const;

  // The same in seconds, added up from the layers: what a report shows.
  double seconds(int stage, int begin, int end) const;

  // No partition's sum of ticks is less.
  Ticks least_sum() const;

  int num_layers() const { return static_cast<int>(profile_.layers.size()); }
  int num_stages() const { return options_.num_stages; }

 private:
  double layer_seconds(int stage, const LayerProfile& layer) const;
  // The link between a stage and the next.
  const LinkCosts& link_behind(int stage) const;

  // What the messages take that go over one kind of link, one way.
  struct LinkTicks {
    std::vector<Ticks> boundary;  // all that cross boundary b
    PassingSkips passing;
  };

  const Profile& profile_;
  const PartitionOptions& options_;
  std::vector<int> kind_of_stage_;           // stages of one kind have the same speed and recompute_share
  std::vector<std::vector<Ticks>> compute_;  // of each kind, prefix sums over the layers
  std::vector<int> link_behind_stage_;       // its kind; the last stage has any
  std::vector<LinkTicks> links_;             // of each kind
};

// The bytes by which a stage exceeds its limit.
struct Shortfall {
  std::int64_t missing_bytes = 0;  // below 0 if it fits
  int stage = 0;
};

// What is held, and worked with, between a stage's input gradients and weight gradients.
class IntervalSplitBytes {
 public:
  IntervalSplitBytes() = default;
  // REQUIRES: `profile` has passed check_profile. input[b] crosses boundary b.
  IntervalSplitBytes(const Profile& profile, const std::vector<std::int64_t>& input);

  // What a stage holds of a micro-batch, if its backward is not split.
  struct Whole {
    WideBytes kept_input;
    WideBytes held;      // with kept_input
    WideBytes backward;  // the most in a backward, with kept_input
  };
  struct Split {
    WideBytes deferred;
    WideBytes input_grad;   // the most during I
    WideBytes weight_grad;  // the most during W
  };
  // Takes constant time; none of it falls when `end` grows and `whole` does not.
  Split of(const Whole& whole, int begin, int end) const;

 private:
  bool is_known_ = false;                        // whether the profile says anything about it
  std::vector<std::int64_t> activations_ = {0};  // prefix sums over the layers
  std::vector<std::int64_t> deferred_ = {0};     // prefix sums over the layers
  std::vector<std::int64_t> output_ = {0};       // what is deferred of the activation that crosses boundary b
  RangeMax grads_;                               // of what crosses boundary b
  RangeMax input_grad_;                          // of each layer, with the activations of all layers before it
  RangeMax rest_of_input_grad_;                  // the same without what it and all layers before it defer
  RangeMax weight_grad_;                         // of each layer, with what all layers before it defer
};

// What a stage holds at its peak, and which stages fit a limit.
class IntervalBytes {
 public:
  // REQUIRES: `profile` has passed check_profile; optimizer_slots is at least zero.
  IntervalBytes(const Profile& profile, int optimizer_slots);

  // See Note [Peak bytes] in partition.h. Takes constant time for each `live`, does not fall when `end` grows, ends at
  // 2^63-1.
  std::int64_t bytes(const std::vector<Live>& live, int begin, int end) const;

  // Of the partition into live.size() stages whose stage that lacks most lacks least; the first such stage of it.
  Shortfall least_shortfall(const std::vector<std::vector<Live>>& live, const std::vector<std::int64_t>& limits) const;

  // No partition into fewer stages fits the limit, whatever the schedule; if `is_at_work`, whatever the schedule in
  // which every stage works on a micro-batch. 0 if none can.
  int least_num_stages(bool is_at_work, std::int64_t limit_bytes) const;

  int num_layers() const { return static_cast<int>(input_.size()) - 1; }

 private:
  // No more than `bytes` of any schedule; if `is_at_work`, of any in which the stage works on a micro-batch. Does not
  // fall when `end` grows, nor when `begin` falls.
  std::int64_t least_bytes(bool is_at_work, int begin, int end) const;
  // Of a stage's forward, without its input, and of its backward, without what is kept of the input.
  std::int64_t forward_working_bytes(int begin, int end) const;
  std::int64_t backward_working_bytes(int begin, int end) const;

  int optimizer_slots_;
  std::vector<std::int64_t> gradients_ = {0};      // prefix sums over the layers; optimizer state is a multiple of them
  std::vector<std::int64_t> other_statics_ = {0};  // prefix sums over the layers: parameters and buffers
  std::vector<std::int64_t> activations_ = {0};    // prefix sums over the layers
  std::vector<std::int64_t> input_ = {0};          // what crosses boundary b: the activation and the skips
  std::vector<std::int64_t> kept_ = {0};           // of the activation that crosses boundary b
  std::vector<std::int64_t> first_working_;        // of each layer's forward, as the first of a stage
  RangeMax forward_working_;   // of each layer's forward, with the activations of all layers before it
  RangeMax backward_working_;  // the same of its backward
  PassingSkips passing_;
  IntervalSplitBytes split_;
};

// How far the stages that fit a limit reach, computed once for each different `live` and limit.
class FurthestEnds {
 public:
  explicit FurthestEnds(const IntervalBytes& bytes) : bytes_(bytes) {}
  // For each first layer, the largest `end` that fits the limit; the layer itself if none does. The reference stays
  // valid.
  const std::vector<int>& of(const std::vector<Live>& live, std::int64_t limit_bytes);

 private:
  using Key = std::pair<std::int64_t, std::vector<std::array<int, 4>>>;  // the limit, and the numbers of `live`

  const IntervalBytes& bytes_;
  std::map<Key, std::vector<int>> known_;
};

}  // namespace gpipe::detail
