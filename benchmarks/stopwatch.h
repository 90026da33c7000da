// Stopwatch: wall and processor seconds of a piece of work, and medians of them.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace gpipe::benchmarks {

struct Seconds {
  double wall = 0;
  double cpu = 0;  // of all threads of the process
};

inline double read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
Seconds measure(const Work& work) {
  const Seconds start{read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_PROCESS_CPUTIME_ID)};
  work();
  return {read_clock(CLOCK_MONOTONIC) - start.wall, read_clock(CLOCK_PROCESS_CPUTIME_ID) - start.cpu};
}

// REQUIRES: values is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Of what `values` are above `baseline`, turn by turn: drifts of the machine cancel out. REQUIRES: as many of both.
inline double median_difference(std::vector<double> values, const std::vector<double>& baseline) {
  for (std::size_t turn = 0; turn < values.size(); ++turn) values[turn] -= baseline[turn];
  return median(std::move(values));
}

// Of repeated measurements of the same work.
struct Samples {
  std::vector<double> wall;
  std::vector<double> cpu;
  void add(const Seconds& seconds) {
    wall.push_back(seconds.wall);
    cpu.push_back(seconds.cpu);
  }
};

}  // namespace gpipe::benchmarks
