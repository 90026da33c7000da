// The start of the search, against every partition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gpipe/plan/long_plan.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/plan_trials.h"
#include "tests/plan/brute_force.h"

namespace gpipe {
namespace {

using detail::options_for_schedule;
using detail::PlanTrials;
using detail::with_recompute;

// Of a partition, each stage in the first mode in which it fits; infinite if one fits in none.
double slowest_stage(const Profile& profile, const PlanOptions& options, const std::vector<int>& layers_per_stage) {
  double slowest = 0;
  int begin = 0;
  for (int stage = 0; stage < options.num_stages; ++stage) {
    const int end = begin + layers_per_stage[stage];
    double own = std::numeric_limits<double>::infinity();
    for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
      PartitionOptions known = options_for_schedule(
          {}, with_recompute(make_schedule(options.schedule, options.num_stages, options.num_micro_batches), mode));
      const std::int64_t bytes = test::stage_bytes(profile, options.optimizer_slots, known.live[stage], begin, end);
      known.workers = options.workers;
      known.memory_limit_bytes = options.memory_limit_bytes;
      if (bytes <= test::limit_bytes(known, stage)) own = test::stage_seconds(profile, known, stage, begin, end);
    }
    slowest = std::max(slowest, own);
    begin = end;
  }
  return slowest;
}

TEST(MixedPartition, HasTheFastestSlowestStageOfAllPartitions) {
  int feasible = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    Profile profile;
    for (int layer = between(3, 9); layer > 0; --layer) {
      profile.layers.emplace_back();
      profile.layers.back().forward_seconds = between(0, 9);
      profile.layers.back().backward_seconds = between(0, 9);
      profile.layers.back().parameter_bytes = between(0, 3);
      profile.layers.back().activation_bytes = between(0, 20);
      profile.layers.back().output_bytes = between(0, 5);
    }
    PlanOptions options;
    options.num_stages = between(1, 3);
    options.num_micro_batches = 4;  // shares of recompute that add up without rounding
    options.schedule = between(0, 1) == 0 ? "1f1b" : "gpipe";
    options.memory_limit_bytes = between(30, 200);
    if (between(0, 1) == 0) {
      options.workers.resize(options.num_stages);
      for (WorkerCosts& worker : options.workers) worker = {std::ldexp(1, between(-1, 1)), between(30, 200), {}};
    }
    double expected = std::numeric_limits<double>::infinity();
    std::vector<int> sizes;
    test::for_each_partition(
        static_cast<int>(profile.layers.size()), options.num_stages, sizes,
        [&](const std::vector<int>& tried) { expected = std::min(expected, slowest_stage(profile, options, tried)); });
    const std::vector<int> found = PlanTrials(profile, options).mixed_layers_per_stage();
    EXPECT_EQ(found.empty(), expected == std::numeric_limits<double>::infinity()) << "seed " << seed;
    if (found.empty()) continue;
    ++feasible;
    EXPECT_EQ(slowest_stage(profile, options, found), expected) << "seed " << seed;
  }
  EXPECT_GT(feasible, 50);
  EXPECT_LT(feasible, 200);
}

}  // namespace
}  // namespace gpipe
