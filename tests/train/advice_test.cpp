// The numbers are worked out by hand: a step of 1f1b takes (M + K - 1) (F + B) seconds where all stages are equal.
#include "train/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe::train {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Measured {
  std::string schedule = "1f1b";
  int num_micro_batches = 4;
  std::vector<StageCosts> stages = {{}, {}};  // F 1 s, B 2 s, I 1 s, W 1 s
  StepOverhead overhead;
  int num_steps = 6;  // with the first, which does not count
  int chunks = 1;
  double processor_fraction = 0;  // 0 = was not measured
};

// On a machine with enough cores, of one layer a stage. Nothing may be changed but the schedule.
TrainedRun run_of(const Measured& measured) {
  TrainedRun run;
  run.num_workers = static_cast<int>(measured.stages.size()) / measured.chunks;
  run.schedule = measured.schedule;
  run.layers_per_stage.assign(measured.stages.size(), 1);
  run.most_micro_batches = measured.num_micro_batches;
  run.num_cores = run.num_local_workers = run.num_workers;
  ++run.num_cores;
  const Schedule schedule =
      make_schedule(measured.schedule, run.num_workers, measured.num_micro_batches, measured.chunks);
  Costs costs;
  costs.stages = measured.stages;
  Timeline timeline = simulate(schedule, costs);
  for (WorkerTimeline& worker : timeline.workers) {
    worker.processor_seconds = measured.processor_fraction * worker.busy_seconds;
  }
  for (int step = 0; step < measured.num_steps; ++step) run.steps.add(timeline, measured.overhead);
  return run;
}

StageCosts seconds(double forward, double backward) {
  StageCosts costs;
  costs.forward_seconds = forward;
  costs.backward_seconds = backward;
  return costs;
}

LayerProfile layer(double forward, double backward) {
  LayerProfile profile;
  profile.forward_seconds = forward;
  profile.backward_seconds = backward;
  return profile;
}

// 5 · 3 s, of which 3 s are bubble; 9 · 1.5 s with twice the micro-batches. Of zb-h1 stage 1 has 12 s to do and begins
// after 1 s, which no order can beat; zb-h2 is as fast and holds more.
TEST(Advice, NamesMoreMicroBatchesAndAnotherScheduleTheBetterFirst) {
  TrainedRun run = run_of({});
  run.most_micro_batches = 8;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-h1 (about 1.15x predicted) or "
                                       "--micro-batches 8 (about 1.11x predicted)"));
  run.has_plan = true;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try a plan with --schedule zb-h1 (about 1.15x predicted) or "
                                       "a plan with --micro-batches 8 (about 1.11x predicted)"));
}

TEST(Advice, DoesNotSayAboutIfTheProfileKnowsBothPartsOfTheBackward) {
  TrainedRun run = run_of({});
  run.profile.layers.assign(2, layer(0.25, 0.5));
  for (LayerProfile& profile : run.profile.layers) profile.input_grad_seconds = 0.25;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-h1 (1.15x predicted)"));
}

TEST(Advice, HasNoOtherScheduleUnderAMemoryLimit) {
  TrainedRun run = run_of({});
  run.has_memory_limit = true;
  EXPECT_THAT(advice(run), IsEmpty());
  run.most_micro_batches = 1000;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --micro-batches 8 (about 1.11x predicted)"));
}

// 9 · 3 s · (f + (1 - f) / 2) where f is fixed: 13.77 s with f = 0.02, and 14.85 s with a tenth.
TEST(Advice, CountsWhatIsFixedInSmallerMicroBatches) {
  TrainedRun run = run_of({});
  run.has_memory_limit = true;
  run.most_micro_batches = 8;
  const auto with_fixed = [&](double share) {
    run.profile.layers.assign(2, layer(0.25, 0.5));  // in other units than the run
    for (LayerProfile& profile : run.profile.layers) {
      profile.fixed_forward_seconds = 0.25 * share;
      profile.fixed_backward_seconds = 0.5 * share;
    }
    return advice(run);
  };
  EXPECT_THAT(with_fixed(0.02), ElementsAre("bubble 20.0 %: try --micro-batches 8 (1.09x predicted)"));
  EXPECT_THAT(with_fixed(0.1), IsEmpty());
  EXPECT_THAT(with_fixed(0), ElementsAre("bubble 20.0 %: try --micro-batches 8 (1.11x predicted)"));
}

// Of five rows, the largest of four micro-batches is not the fourth part, but that of five is the fifth: 6 · 2.4 s.
TEST(Advice, HasNoMoreMicroBatchesThanRows) {
  TrainedRun run = run_of({});
  run.has_memory_limit = true;
  run.num_rows = run.most_micro_batches = 5;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --micro-batches 5 (about 1.04x predicted)"));
  run.most_micro_batches = 4;
  EXPECT_THAT(advice(run), IsEmpty());
}

TEST(Advice, HasNoMicroBatchesWhoseForwardIsShorterThanAMillisecond) {
  TrainedRun run = run_of({"1f1b", 4, {seconds(1.9e-3, 4e-3), seconds(1.9e-3, 4e-3)}, {}});
  run.has_memory_limit = true;
  run.most_micro_batches = 16;
  EXPECT_THAT(advice(run), IsEmpty());
}

TEST(Advice, IsSilentIfLittleIsToBeGained) {
  TrainedRun run = run_of({"1f1b", 64, {{}, {}}, {}});  // 65 · 3 s, of which 3 s are bubble
  run.most_micro_batches = 256;
  EXPECT_THAT(advice(run), IsEmpty());
}

TEST(Advice, IsSilentAfterLessThanFiveSteps) {
  EXPECT_THAT(advice(run_of({"1f1b", 4, {{}, {}}, {}, 5})), IsEmpty());
  EXPECT_THAT(advice(run_of({"1f1b", 4, {{}, {}}, {}, 6})), Not(IsEmpty()));
}

TEST(Advice, IsSilentAboutAScheduleWithoutAName) {
  TrainedRun run = run_of({});
  run.most_micro_batches = 16;
  run.schedule = "";
  EXPECT_THAT(advice(run), IsEmpty());
}

// 12 s of F and B, and the last stage begins after half a second: of the V, whose first part is half as large. Only a
// cut into four stages can do that.
TEST(Advice, HasDeeperSchedulesOnlyWithEnoughLayersAndWithoutABalance) {
  TrainedRun run = run_of({});
  run.layers_per_stage = {2, 2};
  run.profile.layers.assign(4, layer(1, 2));
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-v (about 1.20x predicted)"));
  run.has_balance = true;
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-h1 (about 1.15x predicted)"));
  run.has_balance = false;
  run.layers_per_stage = {2, 1};
  run.profile.layers.pop_back();
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-h1 (about 1.15x predicted)"));
}

// Both take 36 s of F and B; the second worker begins after 1 s and ends 2 s before the first, or begins after 1.5 s.
TEST(Advice, HasNoScheduleThatRefusesTheGivenChunks) {
  TrainedRun run = run_of({"interleaved", 4, std::vector<StageCosts>(6, seconds(1, 2)), {}, 6, 3});
  run.layers_per_stage.assign(6, 2);
  run.profile.layers.assign(12, layer(1, 2));
  EXPECT_THAT(advice(run), ElementsAre("bubble 7.7 %: try --schedule zb-v (about 1.04x predicted)"));
  run.has_chunks = true;  // of looped-bfs, too, which is slower
  EXPECT_THAT(advice(run), IsEmpty());
}

// What a whole backward takes was not measured.
TEST(Advice, HasNoScheduleOfWholeBackwardsAfterOneThatSplitsThem) {
  StageCosts first;
  first.input_grad_seconds = 0;
  first.weight_grad_seconds = 4;
  StageCosts last;
  last.input_grad_seconds = last.weight_grad_seconds = 2;
  TrainedRun run = run_of({"zb-h1", 4, {first, last}, {}});
  EXPECT_THAT(advice(run), IsEmpty());
  run.layers_per_stage = {4, 4};
  EXPECT_THAT(advice(run), ElementsAre(HasSubstr("--schedule zb-v")));
}

// 9 s and 3 s of four equal layers: stage 0 works all the time, 36 s, and stage 1 works 12 s. With two layers each, it
// is 5 · 6 s.
TEST(Advice, KnowsABetterBalance) {
  TrainedRun run = run_of({"1f1b", 4, {seconds(3, 6), seconds(1, 2)}, {}});
  run.layers_per_stage = {3, 1};
  run.profile.layers.assign(4, layer(0.1, 0.2));
  EXPECT_THAT(advice(run), ElementsAre(HasSubstr("try --schedule"),
                                       "or instead, imbalance 33.3 %: try --balance 2,2 (1.20x predicted)"));
  run.has_balance = true;
  run.has_memory_limit = true;
  EXPECT_THAT(advice(run), ElementsAre("imbalance 33.3 %: try it without --balance (1.20x predicted)"));
  run.profile.layers.clear();
  EXPECT_THAT(advice(run), ElementsAre("imbalance 33.3 %: try it without --balance (about 1.20x predicted)"));
  run.has_balance = false;
  EXPECT_THAT(advice(run), IsEmpty());  // another balance may not fit
  run.has_plan = true;
  EXPECT_THAT(advice(run), ElementsAre("imbalance 33.3 %: try a plan from a new profile (about 1.20x predicted)"));
}

// Of 20 s: 15 s of forward and backward, 5 s of what is looked at.
TEST(Advice, NamesALongUpdateAndALongWaitForData) {
  TrainedRun run = run_of({"1f1b", 4, {{}, {}}, {0, 5}});
  run.has_memory_limit = true;
  run.size_option = "--batch-size";
  EXPECT_THAT(advice(run), ElementsAre("weight update 25.0 %: with a mini-batch twice as large (--batch-size) there "
                                       "are half as many (1.14x predicted)"));
  run = run_of({"1f1b", 4, {{}, {}}, {5, 0}});
  run.has_memory_limit = true;
  run.size_option = "--batch-size";
  EXPECT_THAT(advice(run), IsEmpty());  // a core is free, and there is nothing to leave out
  run.num_cores = 2;
  EXPECT_THAT(advice(run),
              ElementsAre("waiting for data 25.0 %: leave a core to the thread that prepares batches (up to 1.33x)"));
  run.preparing_option = "--augment";
  EXPECT_THAT(advice(run), ElementsAre("waiting for data 25.0 %: the thread that prepares batches falls behind, try it "
                                       "without --augment (up to 1.33x)"));
}

TEST(Advice, IsOfTheWholeStepAndHasTwoSentencesAtMost) {
  TrainedRun run = run_of({"1f1b", 4, {{}, {}}, {10, 5}});  // 30 s
  run.most_micro_batches = 8;                               // 1.5 s less
  run.size_option = "--batch-size";
  run.preparing_option = "--augment";
  EXPECT_THAT(advice(run),
              ElementsAre(HasSubstr("waiting for data 33.3 %"), HasSubstr("or instead, weight update 16.7 %")));
  run.preparing_option = run.size_option = "";
  EXPECT_THAT(advice(run), ElementsAre("bubble 20.0 %: try --schedule zb-h1 (about 1.07x predicted) or "
                                       "--micro-batches 8 (about 1.05x predicted)"));
}

TEST(Advice, PromisesNothingIfTheMachineWasBusy) {
  Measured measured;
  measured.processor_fraction = 0.6;
  EXPECT_THAT(advice(run_of(measured)),
              ElementsAre(AllOf(HasSubstr("the workers had a processor for only 60.0 % of the time of their actions"),
                                Not(HasSubstr("predicted")))));
  measured.processor_fraction = 0.95;
  EXPECT_THAT(advice(run_of(measured)), ElementsAre(HasSubstr("try --schedule zb-h1")));
}

TEST(Advice, OfWorkersThatShareCoresIsAboutThatAlone) {
  TrainedRun run = run_of({"1f1b", 4, std::vector<StageCosts>(4), {5, 5}});
  run.most_micro_batches = 64;
  run.num_cores = 2;
  EXPECT_THAT(advice(run), ElementsAre("4 workers on 2 cores take turns: try --stages 2"));
  run.has_balance = true;
  EXPECT_THAT(advice(run), ElementsAre("4 workers on 2 cores take turns: try --stages 2 without --balance"));
  run.has_balance = false;
  run.has_plan = true;
  EXPECT_THAT(advice(run), ElementsAre("4 workers on 2 cores take turns: try a plan with --stages 2"));
  run.has_plan = false;
  run.num_cores = 8;
  run.threads_per_stage = 4;
  EXPECT_THAT(advice(run), ElementsAre("4 workers of 4 threads on 8 cores take turns: try --threads-per-stage 2"));
  run.is_launched = true;
  run.num_cores = 2;
  run.threads_per_stage = 1;
  EXPECT_THAT(advice(run), ElementsAre("4 processes on 2 cores take turns: start 2 on this machine"));
  run.num_local_workers = 2;  // two of them are on another machine
  EXPECT_THAT(advice(run), Not(Contains(HasSubstr("take turns"))));
}

}  // namespace
}  // namespace gpipe::train
