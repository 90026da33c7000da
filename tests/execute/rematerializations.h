// Rematerializations of stages, for tests that try them.
#pragma once

#include <random>
#include <vector>

#include "gpipe/plan/rematerialization.h"

namespace gpipe::test {

// Each layer by itself.
inline Rematerialization layer_by_layer(int num_layers) {
  Rematerialization runs;
  for (int layer = 0; layer < num_layers; ++layer) runs.push_back({layer, layer + 1});
  return runs;
}

// All layers; in them all but the last; and so on. The least memory, and n (n + 1) / 2 forwards more.
inline Rematerialization all_the_way(int num_layers) {
  Rematerialization runs;
  for (int end = 1; end <= num_layers; ++end) runs = {{0, end, runs}};
  return runs;
}

inline Rematerialization random_runs(int begin, int end, std::mt19937& random, bool may_be_all = true) {
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  Rematerialization runs;
  int next = begin;
  while (next < end) {
    const int first = draw(next, end);
    if (first == end) break;
    const int last = draw(first, end - 1);
    next = last + 1;
    if (!may_be_all && first == begin && next == end) continue;
    runs.push_back({first, next, random_runs(first, next, random, false)});
  }
  return runs;
}

}  // namespace gpipe::test
