// The plan takes from the schedule what the partition has to know, and tells the simulator what the stages cost.
#include "gpipe/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "gpipe/error.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/planner.h"
#include "tests/plan/equal_layers.h"

namespace gpipe {
namespace {

using test::equal_layers;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Profile without_outputs(Profile profile) {
  for (LayerProfile& layer : profile.layers) layer.output_bytes = 0;
  return profile;
}

PlanOptions options_for(int num_stages, int num_micro_batches, const std::string& schedule = "1f1b") {
  PlanOptions options;
  options.num_stages = num_stages;
  options.num_micro_batches = num_micro_batches;
  options.schedule = schedule;
  return options;
}

std::vector<std::int64_t> bytes(const Plan& plan) {
  std::vector<std::int64_t> result;
  for (const PartitionStage& stage : plan.partition.stages) result.push_back(stage.bytes);
  return result;
}

std::vector<double> seconds(const Plan& plan) {
  std::vector<double> result;
  for (const PartitionStage& stage : plan.partition.stages) result.push_back(stage.seconds);
  return result;
}

template <typename Error = InvalidArgument>
std::string refusal(const Profile& profile, const PlanOptions& options) {
  try {
    plan(profile, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Plan, CountsTheMicroBatchesThatTheScheduleHolds) {
  const Profile profile = equal_layers(4);
  // 10 · (2 + 2) bytes of weights, 100 for each micro-batch held, and the input of the one at work.
  EXPECT_THAT(bytes(plan(profile, options_for(4, 8, "gpipe"))), ElementsAre(840, 1840, 1840, 1840));
  EXPECT_THAT(bytes(plan(profile, options_for(4, 8, "1f1b"))), ElementsAre(440, 1340, 1240, 1140));
  EXPECT_THAT(bytes(plan(profile, options_for(4, 8, "forward"))), ElementsAre(140, 1140, 1140, 1140));
}

TEST(Plan, CountsTheForwardsThatTheScheduleRepeats) {
  const Profile profile = equal_layers(2);
  PlanOptions options = options_for(2, 4, "gpipe");
  EXPECT_THAT(seconds(plan(profile, options)), ElementsAre(3, 3));
  options.recompute = Recompute::kAlways;
  EXPECT_THAT(seconds(plan(profile, options)), ElementsAre(4, 4));
  EXPECT_THAT(bytes(plan(profile, options)), ElementsAre(40 + 100, 40 + 100 + 4 * 1000));
  options.recompute = Recompute::kExceptLast;
  EXPECT_THAT(seconds(plan(profile, options)), ElementsAre(3.75, 3.75));
  // The last stage of 1F1B runs each backward right behind its forward: nothing to recompute.
  options.schedule = "1f1b";
  options.recompute = Recompute::kAlways;
  EXPECT_THAT(seconds(plan(profile, options)), ElementsAre(4, 3));
}

TEST(Plan, CountsTheBackwardThatTheScheduleRuns) {
  Profile profile = equal_layers(2);
  for (LayerProfile& layer : profile.layers) {
    layer.input_grad_seconds = 1.5;
    layer.weight_grad_seconds = 2.5;
  }
  EXPECT_THAT(seconds(plan(profile, options_for(2, 4, "1f1b"))), ElementsAre(3, 3));
  EXPECT_THAT(seconds(plan(profile, options_for(2, 4, "zb-h1"))), ElementsAre(5, 5));
  EXPECT_THAT(seconds(plan(profile, options_for(2, 4, "forward"))), ElementsAre(1, 1));
}

TEST(Plan, PutsTheStagesOfASlowWorkerWhereTheScheduleDoes) {
  PlanOptions options = options_for(2, 8, "interleaved");
  options.workers = workers_of_speed({1, 0.25});
  // Stages 1 and 3 are on the slow worker.
  EXPECT_THAT(plan(equal_layers(10), options).layers_per_stage, ElementsAre(4, 1, 4, 1));
  options.schedule = "zb-v";  // 1 and 2 are
  const Plan found = plan(equal_layers(10), options);
  EXPECT_THAT(found.layers_per_stage, ElementsAre(4, 1, 1, 4));
  EXPECT_EQ(found.chunks, 2);
  EXPECT_EQ(found.costs.workers, options.workers);
}

TEST(Plan, EachStageOfAWorkerGetsAnEqualPartOfItsMemory) {
  PlanOptions options = options_for(2, 1, "looped-bfs");
  const Profile profile = without_outputs(equal_layers(8));
  options.memory_limit_bytes = 560;  // two layers a stage need 280 bytes
  EXPECT_THAT(plan(profile, options).layers_per_stage, Each(2));
  options.memory_limit_bytes = 558;
  try {
    plan(profile, options);
    FAIL() << "two layers do not fit half of 558 bytes";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.missing_bytes(), 1);
    EXPECT_EQ(error.smallest_num_stages(), 4);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("8 layers into 4 stages"), HasSubstr("279 bytes a stage"), HasSubstr("on 4 workers"),
                      HasSubstr("looped-bfs"), HasSubstr("stage 0 gets 1/2 of the limit of worker 0, 558 bytes")));
  }
}

TEST(Plan, TheNumberOfStagesThatFitsFollowsTheSchedule) {
  // Two stages hold 2 and 1 micro-batches: one layer and three need 40 + 200 and 120 + 300 bytes, which is the best.
  // Three hold 3, 2 and 1: 40 + 300, 40 + 200, 80 + 200.
  PlanOptions options = options_for(2, 8);
  const Profile profile = without_outputs(equal_layers(4));
  options.memory_limit_bytes = 419;
  try {
    plan(profile, options);
    FAIL() << "the last stage needs 420 bytes";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.missing_bytes(), 1);
    EXPECT_EQ(error.smallest_num_stages(), 3);
  }
  options.schedule = "gpipe";  // 8 micro-batches everywhere
  EXPECT_THAT(refusal<InfeasibleError>(profile, options), HasSubstr("no number of stages was found that fits"));
}

TEST(Plan, RefusesMoreStagesThanLayersAndNamesTheChunks) {
  EXPECT_THAT(refusal(equal_layers(3), options_for(4, 1)),
              AllOf(HasSubstr("1 stage on each of 4 workers"), HasSubstr("3 layers"), HasSubstr("at most 3 workers")));
  EXPECT_THAT(refusal(equal_layers(7), options_for(4, 1, "zb-v")),
              AllOf(HasSubstr("2 stages on each of 4 workers"), HasSubstr("8 stages"), HasSubstr("at most 3 workers")));
}

TEST(Plan, RefusesWhatTheScheduleRefuses) {
  EXPECT_THAT(refusal(equal_layers(3), options_for(2, 1, "1f1")), HasSubstr("1f1b"));
  EXPECT_NE(refusal(equal_layers(3), options_for(0, 1)), "not refused");
  EXPECT_NE(refusal(equal_layers(3), options_for(2, 0)), "not refused");
  PlanOptions options = options_for(2, 1);
  options.workers = workers_of_speed({1, 1, 1});
  EXPECT_THAT(refusal(equal_layers(3), options), HasSubstr("workers has 3 entries for 2 workers"));
}

std::int64_t fullest_worker(const Plan& plan, const PlanOptions& options) {
  const Schedule schedule =
      with_recompute(make_schedule(plan.schedule, options.num_stages, options.num_micro_batches), options.recompute);
  const std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedule, stage_bytes(plan.costs));
  return *std::max_element(peaks.begin(), peaks.end());
}

TEST(Plan, PredictsThePeakThatTheScheduleHasOnOneStageAWorker) {
  Profile profile = equal_layers(7);
  for (std::size_t layer = 0; layer < profile.layers.size(); ++layer) {
    profile.layers[layer].kept_output_bytes = static_cast<std::int64_t>(10 * layer);
    profile.layers[layer].forward_working_bytes = 100 + static_cast<std::int64_t>(37 * layer % 90);
    profile.layers[layer].backward_working_bytes = 100 + static_cast<std::int64_t>(23 * layer % 90);
    profile.layers[layer].output_bytes = 90;
  }
  profile.skips = {{"residual", 1, 5, 50}};
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-h2", "forward"}) {
    for (const Recompute mode : {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways}) {
      PlanOptions options = options_for(3, 5, schedule);
      options.recompute = mode;
      const Plan found = plan(profile, options);
      EXPECT_EQ(bytes(found),
                peak_bytes_by_worker(with_recompute(make_schedule(schedule, 3, 5), mode), stage_bytes(found.costs)))
          << schedule << ", " << name(mode);
    }
  }
}

TEST(Plan, FitsTheLimitOfEveryWorkerForEverySchedule) {
  int num_plans = 0;
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const Recompute mode : {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways}) {
      PlanOptions options = options_for(3, 7, info.name);
      options.recompute = mode;
      Profile profile = equal_layers(13);
      profile.layers[0].activation_bytes = 0;
      profile.skips = {{"residual", 3, 12, 50}};
      const std::int64_t unlimited = fullest_worker(plan(profile, options), options);
      for (std::int64_t limit = unlimited / 2; limit < 2 * unlimited; limit += unlimited / 3) {
        options.memory_limit_bytes = limit;
        try {
          EXPECT_LE(fullest_worker(plan(profile, options), options), limit) << info.name;
          ++num_plans;
        } catch (const InfeasibleError& error) {
          EXPECT_GT(error.missing_bytes(), 0) << info.name;
        }
      }
    }
  }
  EXPECT_GT(num_plans, 60);
}

TEST(StageCosts, AreTheSumsOfTheirLayers) {
  Profile profile = equal_layers(5);
  profile.layers[1].input_grad_seconds = 0.5;
  profile.layers[2].weight_grad_seconds = 0.25;
  profile.layers[3].input_grad_seconds = 3;
  profile.layers[1].output_bytes = 1001;
  profile.skips = {{"over", 0, 4, 7}, {"into", 1, 2, 8}, {"inside", 2, 3, 9}};
  const Costs costs = stage_costs(profile, {2, 2, 1}, {0.5, 100}, 1);
  ASSERT_EQ(costs.stages.size(), 3u);
  EXPECT_EQ(costs.stages[0].forward_seconds, 2);
  EXPECT_EQ(costs.stages[0].backward_seconds, 4);
  EXPECT_EQ(costs.stages[0].recompute_seconds, 2);
  EXPECT_EQ(costs.stages[0].update_seconds, 0);
  // Nothing waits for the first stage's input gradients.
  EXPECT_EQ(costs.stages[0].input_grad_seconds, 0);
  EXPECT_EQ(costs.stages[0].weight_grad_seconds, costs.stages[0].backward_seconds);
  EXPECT_EQ(costs.stages[1].input_grad_seconds, 1.75 + 3);
  EXPECT_EQ(costs.stages[1].weight_grad_seconds, 0.25 + 0);
  EXPECT_EQ(costs.stages[0].static_bytes, 20 * 3);
  EXPECT_EQ(costs.stages[0].activation_bytes, 200);
  EXPECT_EQ(costs.stages[0].input_bytes, 0);
  EXPECT_EQ(costs.stages[1].input_bytes, 1001 + 8);
  EXPECT_EQ(costs.stages[2].input_bytes, 1000 + 7);
  EXPECT_EQ(costs.stages[0].output_bytes, 1001);
  EXPECT_EQ(costs.stages[2].output_bytes, 1000);
  EXPECT_EQ(costs.link.latency_seconds, 0.5);
  EXPECT_EQ(costs.link.bytes_per_second, 100);
  ASSERT_EQ(costs.routes.skips.size(), 2u);
  EXPECT_EQ(costs.routes.skips[0].from_stage, 0);
  EXPECT_EQ(costs.routes.skips[0].to_stage, 2);
  EXPECT_EQ(costs.routes.skips[1].to_stage, 1);
  EXPECT_THAT(costs.skip_bytes, ElementsAre(7, 8));
}

TEST(StageCosts, AnOutputThatIsKeptBelongsToTheNextStage) {
  Profile profile = equal_layers(4);
  for (LayerProfile& layer : profile.layers) {
    layer.gradient_bytes = 3;
    layer.buffer_bytes = 5;
    layer.kept_output_bytes = 60;
  }
  profile.layers[0].forward_working_bytes = 350;
  profile.layers[1].forward_working_bytes = 170;
  profile.layers[1].backward_working_bytes = 210;
  profile.layers[2].forward_working_bytes = 1150;  // among it the input, of which 940 are not kept
  profile.skips = {{"into", 1, 2, 8}};
  const Costs costs = stage_costs(profile, {2, 2}, {}, 1);
  EXPECT_EQ(costs.stages[0].static_bytes, 2 * (10 + 2 * 3 + 5));
  EXPECT_EQ(costs.stages[0].activation_bytes, 200 - 60);
  EXPECT_EQ(costs.stages[0].forward_working_bytes, 350);  // more than 100 + 170
  EXPECT_EQ(costs.stages[0].backward_working_bytes, 100 + 210);
  EXPECT_EQ(costs.stages[0].kept_input_bytes, 0);
  EXPECT_EQ(costs.stages[1].activation_bytes, 200);              // the model's own output stays
  EXPECT_EQ(costs.stages[1].forward_working_bytes, 1150 - 940);  // more than 200
  EXPECT_EQ(costs.stages[1].backward_working_bytes, 200);
  EXPECT_EQ(costs.stages[1].input_bytes, 1000 + 8);
  EXPECT_EQ(costs.stages[1].kept_input_bytes, 60 + 8);
}

TEST(StageCosts, AStageThatPassesItsInputOnHoldsNothing) {
  Profile profile = equal_layers(3);
  profile.layers[0].kept_output_bytes = 80;
  profile.layers[1].activation_bytes = 0;
  profile.layers[1].kept_output_bytes = 80;  // the same tensor, as a view
  const Costs costs = stage_costs(profile, {1, 1, 1}, {}, 1);
  EXPECT_EQ(costs.stages[0].activation_bytes, 100 - 80);
  EXPECT_EQ(costs.stages[1].activation_bytes, 0);
  EXPECT_EQ(costs.stages[1].kept_input_bytes, 0);
  EXPECT_EQ(costs.stages[2].kept_input_bytes, 80);
}

TEST(StageCosts, WhatIsDeferredIsHeldByTheStageThatNeedsIt) {
  Profile profile = equal_layers(6);  // of 100 bytes of activations, 1000 of output
  EXPECT_EQ(stage_costs(profile, {2, 2, 2}, {}, 1).stages[1].split, std::nullopt);
  for (LayerProfile& layer : profile.layers) {
    layer.deferred_bytes = 70;
    layer.deferred_output_bytes = 30;
    layer.kept_output_bytes = 10;
    layer.backward_working_bytes = 140;
    layer.input_grad_working_bytes = 150;
    layer.weight_grad_working_bytes = 90;
  }
  profile.skips = {{"over", 0, 5, 7}};
  const Costs costs = stage_costs(profile, {2, 2, 2}, {}, 1);
  // Nothing waits for the gradient of the input: the first stage holds its graph and the gradients that came to it.
  EXPECT_EQ(costs.stages[0].split->deferred_bytes, 200 - 10 + 1000 + 7);
  EXPECT_EQ(costs.stages[0].split->input_grad_working_bytes, 200 - 10 + 1000 + 7);
  EXPECT_EQ(costs.stages[0].split->weight_grad_working_bytes, 100 + 140);
  EXPECT_EQ(costs.stages[1].split->deferred_bytes, 2 * 70 - 30 + 30);     // what goes, and what comes
  EXPECT_EQ(costs.stages[1].split->input_grad_working_bytes, 100 + 150);  // more than 150 + 70 - 30
  EXPECT_EQ(costs.stages[1].split->weight_grad_working_bytes, 30 + 70 + 90);
  EXPECT_EQ(costs.stages[2].split->deferred_bytes, 2 * 70 + 30);
  profile.layers[4].input_grad_working_bytes = 200;
  EXPECT_EQ(stage_costs(profile, {2, 2, 2}, {}, 1).stages[2].split->input_grad_working_bytes, 200 + 70);
}

TEST(StageCosts, WithoutAnythingDeferredTheInputGradientIsTheWholeBackward) {
  Profile profile = equal_layers(4);
  for (LayerProfile& layer : profile.layers) layer.deferred_bytes = 0;
  const Costs costs = stage_costs(profile, {2, 2}, {}, 1);
  for (const StageCosts& stage : costs.stages) {
    EXPECT_EQ(stage.split->deferred_bytes, 0);
    EXPECT_EQ(stage.split->input_grad_working_bytes, 200);
    EXPECT_EQ(stage.split->weight_grad_working_bytes, 0);
  }
}

TEST(Partition, PredictsAtLeastWhatTheStagesHold) {
  Profile profile = equal_layers(8);
  for (std::size_t index = 0; index < profile.layers.size(); ++index) {
    LayerProfile& layer = profile.layers[index];
    layer.deferred_bytes = 50 + 20 * static_cast<std::int64_t>(index);
    layer.deferred_output_bytes = 20;
    layer.output_bytes = 60;
    layer.backward_working_bytes = 140;
    layer.input_grad_working_bytes = 150;
    layer.weight_grad_working_bytes = *layer.deferred_bytes + 30;
  }
  for (const char* name : {"zb-h1", "zb-h2", "1f1b"}) {
    PlanOptions options;
    options.num_stages = 4;
    options.num_micro_batches = 8;
    options.schedule = name;
    const Plan plan = plan_with_layers(profile, options, {2, 2, 2, 2});
    const std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedule_of(plan), stage_bytes(plan.costs));
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_GE(plan.partition.stages[stage].bytes, peaks[stage]) << name << " " << stage;
      EXPECT_LE(plan.partition.stages[stage].bytes, peaks[stage] * 5 / 4) << name << " " << stage;
    }
  }
}

TEST(StageCosts, EndAtTheLargestNumberInsteadOfWrappingAround) {
  Profile profile = equal_layers(1);
  profile.layers[0].parameter_bytes = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_EQ(stage_costs(profile, {1}, {}, 2).stages[0].static_bytes, std::numeric_limits<std::int64_t>::max());
}

TEST(StageCosts, RefuseLayersThatDoNotAddUp) {
  const auto problem = [](const std::vector<int>& layers_per_stage, int optimizer_slots) -> std::string {
    try {
      stage_costs(equal_layers(4), layers_per_stage, {}, optimizer_slots);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(problem({2, 1}, 2), AllOf(HasSubstr("3 layers together (2 + 1)"), HasSubstr("the profile has 4")));
  EXPECT_THAT(problem({}, 2), HasSubstr("0 layers together"));
  EXPECT_THAT(problem({5, -1}, 2), HasSubstr("stage 1 has -1 layers"));
  EXPECT_THAT(problem({4, 0}, 2), HasSubstr("stage 1 has 0 layers"));
  EXPECT_THAT(problem({2, 2}, -1), HasSubstr("optimizer_slots is -1"));
}

TEST(PartitionFor, ASchedulesOwnListsGivesWhatItsNameGives) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "forward"}) {
    PlanOptions options = options_for(3, 4, name);
    options.recompute = Recompute::kExceptLast;
    const Schedule schedule = with_recompute(make_schedule(name, 3, 4), options.recompute);
    std::vector<int> layers;
    for (const PartitionStage& stage : partition_for(equal_layers(8), schedule, {}).stages)
      layers.push_back(stage.num_layers);
    EXPECT_EQ(layers, partitioned_plan(equal_layers(8), options).layers_per_stage) << name;
  }
}

}  // namespace
}  // namespace gpipe
