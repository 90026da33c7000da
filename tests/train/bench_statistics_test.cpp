#include "train/bench_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/bench_emulation_report.h"
#include "train/bench_noise.h"
#include "train/bench_results.h"

namespace gpipe::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchStatistics, FindsTheMedianOfOddAndEvenNumbersOfValues) {
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
  EXPECT_EQ(spread_of({4, 1, 3, 2}).median, 2.5);
  EXPECT_EQ(spread_of({7}).median, 7);
}

TEST(BenchStatistics, FindsQuartilesBetweenTwoValuesOnTheLine) {
  // Four values have places 0 to 3: a quarter of the way is 0.75, between 1 and 2; three quarters is 2.25.
  const Spread spread = spread_of({4, 3, 2, 1});
  EXPECT_DOUBLE_EQ(spread.lower_quartile, 1.75);
  EXPECT_DOUBLE_EQ(spread.upper_quartile, 3.25);
  EXPECT_EQ(spread.least, 1);
  EXPECT_EQ(spread.most, 4);
}

TEST(BenchStatistics, TakesTheMedianOfRatiosAndNotTheRatioOfMedians) {
  // The machine was twice as slow in the second turn, for both.
  const std::vector<double> plain = {10, 20, 12};
  const std::vector<double> other = {5, 10, 8};
  EXPECT_THAT(ratios_turn_by_turn(plain, other), ElementsAre(2, 2, 1.5));
  EXPECT_EQ(spread_of(ratios_turn_by_turn(plain, other)).median, 2);
  EXPECT_EQ(spread_of(plain).median / spread_of(other).median, 1.5);
}

TEST(BenchNoise, CountsEverythingButIdlingAndWaitingAsBusy) {
  const auto seconds = parse_processor_seconds("cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3 4\n", 100);
  ASSERT_TRUE(seconds);
  EXPECT_DOUBLE_EQ(seconds->busy, 1.71);  // 100 + 20 + 30 + 6 + 7 + 8; guests are in the first two
  EXPECT_DOUBLE_EQ(seconds->all, 6.21);   // and 400 + 50
}

TEST(BenchNoise, KnowsNothingOfAnotherForm) {
  EXPECT_FALSE(parse_processor_seconds("", 100));
  EXPECT_FALSE(parse_processor_seconds("cpu0 1 2 3 4 5 6 7 8", 100));
  EXPECT_FALSE(parse_processor_seconds("cpu  1 2 3", 100));
}

Noise quiet_noise() {
  Noise noise;
  noise.others_share = 0.01;
  noise.baseline_seconds = spread_of({1.0, 1.01, 1.02});
  return noise;
}

TEST(BenchNoise, TrustsAQuietMachine) {
  const Verdict verdict = judge(quiet_noise());
  EXPECT_TRUE(verdict.is_quiet);
  EXPECT_THAT(verdict.text, HasSubstr("the machine was quiet: other processes took 1.0 %"));
}

TEST(BenchNoise, DoubtsAMachineOnWhichOthersWorked) {
  Noise noise = quiet_noise();
  noise.others_share = 0.2;
  const Verdict verdict = judge(noise);
  EXPECT_FALSE(verdict.is_quiet);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("too busy to trust these figures"), HasSubstr("took 20.0 %")));
}

TEST(BenchNoise, DoubtsAPlainLoopThatTakesNowLongerNowLess) {
  Noise noise = quiet_noise();
  noise.baseline_seconds = spread_of({1, 1.5, 2});
  const Verdict verdict = judge(noise);
  EXPECT_FALSE(verdict.is_quiet);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("quartiles are 33.3 % of its median apart"), Not(HasSubstr("took"))));
}

TEST(BenchNoise, SaysWhenItCannotTell) {
  Noise noise = quiet_noise();
  noise.others_share.reset();
  EXPECT_THAT(judge(noise).text, HasSubstr("too little was run to tell"));
}

BenchRun run_of_three_rows() {
  BenchRun run;
  run.workload = "tiny";
  run.description = "layers";
  run.num_micro_batches = 4;
  run.num_repeats = 2;
  run.noise = quiet_noise();
  run.rows.resize(3);
  run.rows[0].name = "plain";
  run.rows[0].speed_up = spread_of({1});
  run.rows[1].name = "1f1b";
  run.rows[1].speed_up = spread_of({1.5});
  run.rows[1].bound = 2;
  run.rows[1].same_loss = true;
  run.rows[2].name = "peer";
  run.rows[2].why_not = "not installed";
  return run;
}

TEST(BenchResults, ComparesASpeedUpWithItsBound) {
  const std::string text = bench_text(run_of_three_rows());
  EXPECT_THAT(text, HasSubstr("1.50-1.50    0.75"));
  EXPECT_THAT(text, HasSubstr("peer: not installed\n"));
}

TEST(BenchResults, HasARowThatDidNotRunOnlyAmongTheRemarksOfMarkdown) {
  const std::string text = bench_markdown({"a processor", 2, "1.13", "0.1"}, {run_of_three_rows()});
  EXPECT_THAT(text, AllOf(HasSubstr("| 1f1b |"), HasSubstr("- peer: not installed"), Not(HasSubstr("| peer |"))));
}

TEST(BenchResults, NamesTheRowsThatHaveAnotherLoss) {
  BenchRun run = run_of_three_rows();
  EXPECT_THAT(rows_with_other_losses(run), ElementsAre());
  run.rows[1].same_loss = false;
  EXPECT_THAT(rows_with_other_losses(run), ElementsAre("1f1b"));
}

Emulation emulation_of_four_steps() {
  Emulation emulation;
  emulation.workload = "amoebanet";
  emulation.schedule = "gpipe";
  emulation.recompute = "always";
  const auto add = [&](int micro_batches, int stages, double fast, double slow) {
    EmulatedStep step;
    step.num_micro_batches = micro_batches;
    step.num_stages = stages;
    step.alone_seconds = 8;
    step.fast.seconds = fast;
    step.slow.seconds = slow;
    emulation.steps.push_back(step);
  };
  add(1, 2, 8, 9);
  add(1, 4, 8, 10);
  add(32, 2, 5, 6);
  add(32, 4, 2.5, 4);
  return emulation;
}

TEST(BenchEmulation, NormalisesTable2ByTheFewestWorkersAndMicroBatchesAndTable3ByTheFewestWorkers) {
  const std::string text = emulation_text(emulation_of_four_steps());
  // 8 / 2.5 over one and over K=2, M=1; the paper has 1.84, torchgpipe 72.4 / 26.7.
  EXPECT_THAT(text, HasSubstr("32  4  2.5 s      3.20      3.20   1.84        2.71"));
  // 5 / 2.5, 6 / 4; the paper has 1.7.
  EXPECT_THAT(text, HasSubstr("32  4  2.00  1.50         1.70"));
}

}  // namespace
}  // namespace gpipe::train
