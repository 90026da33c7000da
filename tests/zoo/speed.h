// How fast a network of the zoo is trained, against a plain loop in one thread.
#pragma once

#include <vector>

#include "benchmarks/stopwatch.h"
#include "gpipe/model/layer_chain.h"
#include "tests/zoo/network.h"

namespace gpipe::zoo {

// Of one turn after the other. A turn runs all four, each for a step of 8 micro-batches or for some.
struct Speed {
  benchmarks::Samples whole;       // forward and backward of the whole module, micro-batch after micro-batch
  benchmarks::Samples one_stage;   // a pipeline of one stage
  benchmarks::Samples two_stages;  // of two, split by the profile of the first batch
  benchmarks::Samples two_loops;   // two loops as `whole` at once, each with a module of its own

  // The median of the plain loop's steps.
  double step_milliseconds() const;
  // Medians of ratios within a turn. Seconds of one stage over those of the whole module:
  double overhead() const;
  double processor_overhead() const;
  // Seconds of the whole module over those of two stages:
  double speed_up() const;
  // s2, the work of two loops at once over that of one:
  double scaling() const;
  // The part of what can be had: the bound of the schedule, 2M / (M + 1), times what two threads lose here, s2 / 2.
  double share_of_bound() const;

  int steps_per_turn = 1;
  std::vector<int> balance;  // layers of each of the two stages
};

struct Effort {
  int turns = 5;
  double seconds_per_turn = 0.1;  // of each of the four at least, in whole steps
};

// The executor's optimization has to be off: see train_whole.
Speed measure_speed(const Network& network, const Effort& effort);

}  // namespace gpipe::zoo
