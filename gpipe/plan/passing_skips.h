// Skips that pass over a stage: stashed before it and popped behind it, they cost it nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/plan/profile.h"

namespace gpipe {

// What the skips that cross each boundary weigh, and those of them that pass over a whole interval of layers. Boundary
// b lies in front of layer b.
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

}  // namespace gpipe
