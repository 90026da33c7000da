// The largest of any consecutive values, in constant time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe {

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

}  // namespace gpipe
