#include "data/order.h"

#include <numeric>

namespace gpipe::data {

std::vector<std::int64_t> shuffled_order(std::int64_t num_samples, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Random random({seed, static_cast<std::uint64_t>(epoch)});
  shuffle(order, random);
  return order;
}

}  // namespace gpipe::data
