// Statistics of repeated measurements: what is in the middle, how far they spread, and ratios turn by turn.
#pragma once

#include <vector>

namespace gpipe::train {

struct Spread {
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  double least = 0;
  double most = 0;
};

// The value below which that part of `values` lies, between two of them on the straight line: of 1, 2, 3, 4 a quarter
// is below 1.75. REQUIRES: values is not empty, part is from 0 to 1.
double quantile(std::vector<double> values, double part);

// REQUIRES: values is not empty.
Spread spread_of(const std::vector<double>& values);

// values[turn] / others[turn]: what makes the machine slower for a while does so to both sides. REQUIRES: as many of
// both, and no other is 0.
std::vector<double> ratios_turn_by_turn(const std::vector<double>& values, const std::vector<double>& others);

}  // namespace gpipe::train
