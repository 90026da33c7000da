#include "train/bench_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gpipe::train {

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double place = part * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

Spread spread_of(const std::vector<double>& values) {
  return {quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75), quantile(values, 0),
          quantile(values, 1)};
}

std::vector<double> ratios_turn_by_turn(const std::vector<double>& values, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (std::size_t turn = 0; turn < values.size(); ++turn) ratios.push_back(values[turn] / others[turn]);
  return ratios;
}

}  // namespace gpipe::train
