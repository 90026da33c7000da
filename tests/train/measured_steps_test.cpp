#include "train/measured_steps.h"

#include <gtest/gtest.h>

#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::train {
namespace {

// Two stages, whose forwards take 1 s and whose backwards take `backward_seconds`.
Timeline two_stages(int num_micro_batches, double backward_seconds) {
  const Schedule schedule = schedules::one_f_one_b(2, num_micro_batches);
  StageCosts costs;
  costs.backward_seconds = backward_seconds;
  return simulate(schedule, uniform_costs(schedule, costs));
}

TEST(MeasuredSteps, LeavesTheFirstStepOut) {
  MeasuredSteps steps;
  steps.add(two_stages(4, 20), {100, 100});
  EXPECT_EQ(steps.num_steps(), 0);
  steps.add(two_stages(4, 2), {1, 3});
  steps.add(two_stages(4, 4), {2, 5});
  ASSERT_EQ(steps.num_steps(), 2);
  EXPECT_DOUBLE_EQ(steps.makespan_seconds(), (5 * 3 + 5 * 5) / 2.0);
  EXPECT_DOUBLE_EQ(steps.overhead().data_seconds, 1.5);
  EXPECT_DOUBLE_EQ(steps.overhead().update_seconds, 4);
  ASSERT_EQ(steps.stages().size(), 2U);
  const ActionTimes& backward = steps.stages()[1][static_cast<std::size_t>(ActionKind::kBackward)];
  EXPECT_EQ(backward.count, 8);
  EXPECT_DOUBLE_EQ(backward.mean(), 3);
  EXPECT_EQ(steps.stages()[1][static_cast<std::size_t>(ActionKind::kInputGrad)].mean(), 0);
}

TEST(MeasuredSteps, CountsOnlyThoseWithTheMostMicroBatches) {
  MeasuredSteps steps;
  for (const int num_micro_batches : {2, 2, 4, 3, 4}) steps.add(two_stages(num_micro_batches, 2), {});
  EXPECT_EQ(steps.num_steps(), 2);
  EXPECT_EQ(steps.num_micro_batches(), 4);
  EXPECT_DOUBLE_EQ(steps.makespan_seconds(), 15);
}

// Stage 0 works 36 s and waits 3 s for the first backward; stage 1 works 12 s.
TEST(MeasuredSteps, TellsAnImbalanceFromTheRestOfTheBubble) {
  const Schedule schedule = schedules::gpipe(2, 4);
  Costs costs = uniform_costs(schedule);
  costs.stages[0].forward_seconds = 3;
  costs.stages[0].backward_seconds = 6;
  MeasuredSteps steps;
  for (int step = 0; step < 3; ++step) steps.add(simulate(schedule, costs), {});
  EXPECT_DOUBLE_EQ(steps.makespan_seconds(), 39);
  EXPECT_DOUBLE_EQ(steps.bubble_fraction(), (78.0 - 48) / 78);
  EXPECT_DOUBLE_EQ(steps.imbalance_fraction(), (72.0 - 48) / 78);
}

TEST(MeasuredSteps, KnowsHowMuchOfTheirTimeWorkersHadAProcessor) {
  MeasuredSteps steps;
  for (int step = 0; step < 3; ++step) steps.add(two_stages(4, 2), {});
  EXPECT_EQ(steps.processor_fraction(), 1);  // unknown
  Timeline timeline = two_stages(4, 2);
  timeline.workers[0].processor_seconds = 9;  // of 12
  timeline.workers[1].processor_seconds = 6;
  steps.add(timeline, {});
  EXPECT_DOUBLE_EQ(steps.processor_fraction(), 15.0 / 24);
}

}  // namespace
}  // namespace gpipe::train
