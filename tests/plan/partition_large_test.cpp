// The partition of long chains: right, and quick enough to run in a test.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "gpipe/error.h"
#include "gpipe/plan/partition.h"

namespace gpipe {
namespace {

// A thousand layers, sixty-four stages, everything at once.
class LargePartition : public ::testing::Test {
 protected:
  LargePartition() {
    std::mt19937 random(1);
    const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int index = 0; index < 1000; ++index) {
      LayerProfile layer;
      layer.forward_seconds = between(0, 1000);
      layer.backward_seconds = between(0, 1000);
      layer.parameter_bytes = between(0, 1000);
      layer.activation_bytes = between(0, 1000);
      layer.output_bytes = between(0, 1000);
      profile_.layers.push_back(layer);
      if (index % 3 == 0) profile_.skips.push_back({"skip", between(0, index), index, between(0, 200)});
    }
    options_.num_stages = 64;
    options_.num_micro_batches = 64;
    for (int stage = 0; stage < 64; ++stage) {
      options_.live.push_back({{64 - stage, 0}});
      speeds_.push_back(stage % 2 == 0 ? 1 : 0.5);
    }
  }

  // The least max(t) by the plain recurrence, for stages without messages.
  double least_slowest(const std::vector<double>& speed) const {
    const int num_layers = static_cast<int>(profile_.layers.size());
    std::vector<double> sums = {0};
    for (const LayerProfile& layer : profile_.layers)
      sums.push_back(sums.back() + layer.forward_seconds + layer.backward_seconds);
    std::vector<double> least(num_layers + 1, std::numeric_limits<double>::infinity());
    least[0] = 0;
    for (int stage = 0; stage < options_.num_stages; ++stage) {
      for (int end = num_layers; end >= 0; --end) {
        double best = std::numeric_limits<double>::infinity();
        for (int begin = end - 1; begin >= 0; --begin) {
          best = std::min(best, std::max(least[begin], (sums[end] - sums[begin]) / speed[stage]));
        }
        least[end] = best;
      }
    }
    return least[num_layers];
  }

  Profile profile_;
  PartitionOptions options_;
  std::vector<double> speeds_;
};

TEST_F(LargePartition, HasTheSlowestStageOfThePlainRecurrence) {
  options_.objective = Objective::kSlowestStage;
  EXPECT_EQ(partition(profile_, options_).slowest_seconds, least_slowest(std::vector<double>(64, 1)));
  options_.workers = workers_of_speed(speeds_);
  EXPECT_EQ(partition(profile_, options_).slowest_seconds, least_slowest(speeds_));
}

TEST_F(LargePartition, IsNoWorseForTheMakespanThanTheOneWithTheFastestSlowestStage) {
  options_.link = {1, 10};
  options_.workers = workers_of_speed(speeds_);
  options_.memory_limit_bytes = 1000000;
  const Partition makespan = partition(profile_, options_);
  options_.objective = Objective::kSlowestStage;
  const Partition slowest = partition(profile_, options_);
  EXPECT_LT(makespan.makespan_seconds, slowest.makespan_seconds);
  EXPECT_GT(makespan.slowest_seconds, slowest.slowest_seconds);
  for (const PartitionStage& stage : makespan.stages) EXPECT_LE(stage.bytes, 1000000);
}

TEST_F(LargePartition, FindsTheSmallestNumberOfStagesThatFits) {
  options_.num_stages = 2;
  options_.live = {{{2, 0}}, {{1, 0}}};
  options_.live_for = [](int num_stages) {
    std::vector<std::vector<Live>> live(num_stages);
    for (int stage = 0; stage < num_stages; ++stage) live[stage] = {{std::min(64, num_stages - stage), 0}};
    return live;
  };
  options_.memory_limit_bytes = 200000;
  try {
    partition(profile_, options_);
    FAIL() << "half of the layers do not fit";
  } catch (const InfeasibleError& error) {
    const int smallest = error.smallest_num_stages();
    ASSERT_GT(smallest, 2);
    options_.num_stages = smallest;
    options_.live = options_.live_for(smallest);
    EXPECT_NO_THROW(partition(profile_, options_));
    options_.num_stages = smallest - 1;
    options_.live = options_.live_for(smallest - 1);
    EXPECT_THROW(partition(profile_, options_), InfeasibleError);
  }
}

}  // namespace
}  // namespace gpipe
