// Prediction against measurement, on timelines made by hand.
#include "gpipe/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gpipe/error.h"
#include "timelines.h"

namespace gpipe::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two stages, two micro-batches, in milliseconds.
Timeline two_stages(double forward, double backward, double update) {
  Timeline timeline = one_f_one_b_timeline(2, 2);
  const double first[] = {0, forward, 2 * forward + backward, 3 * forward + 2 * backward};
  const double second[] = {forward, 2 * forward, 2 * forward + backward, 3 * forward + backward};
  for (int worker = 0; worker < 2; ++worker) {
    for (int index = 0; index < 4; ++index) {
      Span& span = timeline.workers[worker].spans[index];
      span.start_seconds = 1e-3 * (worker == 0 ? first : second)[index];
      span.end_seconds = span.start_seconds + 1e-3 * (span.action.kind == F ? forward : backward);
    }
    WorkerTimeline& one = timeline.workers[worker];
    one.update_start_seconds = one.spans.back().end_seconds;
    one.update_end_seconds = one.update_start_seconds + 1e-3 * update;
  }
  add_up(timeline);
  return timeline;
}

TEST(Compare, TellsStepsAndTheirRatio) {
  const Comparison comparison = compare(two_stages(1, 2, 0.5), two_stages(1, 2.5, 0.5));
  EXPECT_NEAR(comparison.step_seconds.predicted, 9.5e-3, 1e-12);
  EXPECT_NEAR(comparison.step_seconds.measured, 11e-3, 1e-12);
  EXPECT_NEAR(comparison.step_seconds.ratio(), 9.5 / 11, 1e-12);
  EXPECT_NEAR(comparison.bubble_fraction.predicted, 1 - 13.0 / 19, 1e-12);
  EXPECT_EQ(comparison.num_micro_batches, 2);
  EXPECT_EQ(comparison.name, "1f1b");
}

TEST(Compare, TellsMeanAndTotalOfEachKindOfEachStage) {
  Timeline measured = two_stages(1, 2.5, 0.5);
  measured.workers[1].spans[2].end_seconds += 1e-3;  // the forward of micro-batch 1
  const Comparison comparison = compare(two_stages(1, 2, 0.5), measured);
  ASSERT_EQ(comparison.stages.size(), 2U);
  for (const StageComparison& stage : comparison.stages) {
    ASSERT_EQ(stage.kinds.size(), 2U);
    EXPECT_EQ(stage.kinds[0].kind, F);
    EXPECT_EQ(stage.kinds[1].kind, B);
    EXPECT_EQ(stage.kinds[1].num_actions, 2);
    EXPECT_NEAR(stage.kinds[1].mean_seconds.predicted, 2e-3, 1e-12);
    EXPECT_NEAR(stage.kinds[1].mean_seconds.measured, 2.5e-3, 1e-12);
    EXPECT_NEAR(stage.kinds[1].total_seconds.measured, 5e-3, 1e-12);
    EXPECT_NEAR(stage.kinds[1].mean_seconds.ratio(), 0.8, 1e-12);
    EXPECT_FALSE(stage.peak_bytes);
  }
  EXPECT_NEAR(comparison.stages[0].kinds[0].mean_seconds.measured, 1e-3, 1e-12);
  EXPECT_NEAR(comparison.stages[1].kinds[0].mean_seconds.measured, 1.5e-3, 1e-12);
}

TEST(Compare, StagesOfOneWorkerAreToldApart) {
  const Comparison comparison = compare(two_chunk_timeline(2, 3, {1, 0}), two_chunk_timeline(2, 3, {2, 0}));
  ASSERT_EQ(comparison.workers.size(), 2U);
  ASSERT_EQ(comparison.stages.size(), 4U);
  for (const StageComparison& stage : comparison.stages) {
    ASSERT_EQ(stage.kinds.size(), 2U);
    EXPECT_EQ(stage.kinds[0].num_actions, 3);
    EXPECT_EQ(stage.kinds[0].mean_seconds.ratio(), 0.5);
  }
}

TEST(Compare, TellsBusyIdleAndOptimizerStepOfEachWorker) {
  const Comparison comparison = compare(two_stages(1, 2, 0.5), two_stages(1, 2.5, 0.25));
  ASSERT_EQ(comparison.workers.size(), 2U);
  EXPECT_NEAR(comparison.workers[0].busy_seconds.predicted, 6.5e-3, 1e-12);
  EXPECT_NEAR(comparison.workers[0].busy_seconds.measured, 7.25e-3, 1e-12);
  EXPECT_NEAR(comparison.workers[0].idle_seconds.predicted, 3e-3, 1e-12);
  EXPECT_NEAR(comparison.workers[1].update_seconds.ratio(), 2, 1e-9);
  EXPECT_FALSE(comparison.workers[0].peak_bytes);
}

TEST(Compare, BytesAreThoseOfTheWorkersIfKnownAndOfTheStagesIfGiven) {
  Timeline predicted = two_stages(1, 2, 0);
  Timeline measured = two_stages(1, 2, 0);
  predicted.workers[0].peak_bytes = 300;
  measured.workers[0].peak_bytes = 400;
  predicted.workers[1].peak_bytes = 100;  // and not measured
  const Comparison comparison = compare(predicted, measured, {{1024, 2048}, {1000, 0}});
  ASSERT_TRUE(comparison.workers[0].peak_bytes);
  EXPECT_EQ(comparison.workers[0].peak_bytes->ratio(), 0.75);
  EXPECT_FALSE(comparison.workers[1].peak_bytes);
  EXPECT_EQ(comparison.stages[0].peak_bytes->ratio(), 1.024);
  EXPECT_EQ(comparison.stages[1].peak_bytes->measured, 0);
}

TEST(Compare, ARatioToNothingIsInfiniteUnlessNothingWasPredicted) {
  EXPECT_EQ((Compared{0, 0}).ratio(), 1);
  EXPECT_TRUE(std::isinf((Compared{1, 0}).ratio()));
  EXPECT_EQ((ComparedBytes{0, 7}).ratio(), 0);
  EXPECT_TRUE(std::isinf((ComparedBytes{7, 0}).ratio()));
}

std::string refusal(const Timeline& predicted, const Timeline& measured, const StagePeakBytes& peak_bytes = {}) {
  try {
    compare(predicted, measured, peak_bytes);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Compare, RefusesTimelinesOfDifferentSchedules) {
  const Timeline timeline = one_f_one_b_timeline(2, 3);
  EXPECT_THAT(refusal(timeline, one_f_one_b_timeline(3, 3)), HasSubstr("2 workers, the measurement 3"));
  EXPECT_THAT(refusal(timeline, two_chunk_timeline(2, 3)), HasSubstr("2 stages, the measurement 4"));
  EXPECT_THAT(refusal(timeline, one_f_one_b_timeline(2, 2)), HasSubstr("3 micro-batches, the measurement 2"));
  EXPECT_THAT(refusal(timeline, zero_bubble_timeline(2, 3)),
              HasSubstr("action 2 of worker 0 is 0B0 in the prediction, 0I0 in the measurement"));
  Timeline shorter = timeline;
  shorter.workers[1].spans.pop_back();
  EXPECT_THAT(refusal(timeline, shorter), HasSubstr("6 actions on worker 1, the measurement 5"));
  EXPECT_THAT(refusal(shorter, timeline), HasSubstr("5 actions on worker 1, the measurement 6"));
}

TEST(Compare, RefusesStagesThatDoNotExistAndPeaksThatAreNotOnePerStage) {
  Timeline timeline = one_f_one_b_timeline(2, 3);
  EXPECT_THAT(refusal(timeline, timeline, {{1}, {1, 2}}), HasSubstr("1 predicted and 2 measured entries for 2 stages"));
  EXPECT_THAT(refusal(timeline, timeline, {{}, {1, 2}}), HasSubstr("0 predicted and 2 measured"));
  EXPECT_EQ(refusal(timeline, timeline, {{1, 2}, {1, 2}}), "not refused");
  timeline.workers[1].spans[0].action.stage = 7;
  EXPECT_THAT(refusal(timeline, timeline), HasSubstr("action 0 of worker 1 is 7F0"));
}

TEST(CompareText, IsASetOfTables) {
  const Comparison comparison =
      compare(two_stages(1, 2, 0.5), two_stages(1, 2.5, 0.5), {{3 << 20, 1 << 20}, {2 << 20, 1 << 20}});
  EXPECT_EQ(to_text(comparison),
            "1f1b  2 stages  2 micro-batches\n"
            "\n"
            "        predicted  measured  ratio\n"
            "step       9.5 ms     11 ms  0.864\n"
            "bubble      31.6%     31.8%\n"
            "\n"
            "stage  action    number  predicted  measured  ratio  all predicted  all measured\n"
            "    0  forward        2       1 ms      1 ms      1           2 ms          2 ms\n"
            "    0  backward       2       2 ms    2.5 ms    0.8           4 ms          5 ms\n"
            "    1  forward        2       1 ms      1 ms      1           2 ms          2 ms\n"
            "    1  backward       2       2 ms    2.5 ms    0.8           4 ms          5 ms\n"
            "\n"
            "worker  busy predicted  measured  ratio  idle predicted  measured\n"
            "     0          6.5 ms    7.5 ms  0.867            3 ms    3.5 ms\n"
            "     1          6.5 ms    7.5 ms  0.867            3 ms    3.5 ms\n"
            "\n"
            "stage  peak predicted  measured  ratio\n"
            "    0           3 MiB     2 MiB    1.5\n"
            "    1           1 MiB     1 MiB      1\n");
}

std::size_t widest(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(CompareText, LeavesOutTotalsAndNamesWhereTheyDoNotFit) {
  const Comparison comparison = compare(two_stages(1, 2, 0), two_stages(1, 2, 0));
  const std::string narrow = to_text(comparison, 60);
  EXPECT_LE(widest(narrow), 60U);
  EXPECT_THAT(narrow, AllOf(HasSubstr("backward"), Not(HasSubstr("all predicted")), Not(HasSubstr("idle"))));
  const std::string narrower = to_text(comparison, 40);
  EXPECT_LE(widest(narrower), 40U);
  EXPECT_THAT(narrower, AllOf(HasSubstr("    0  B"), Not(HasSubstr("backward"))));
  EXPECT_EQ(to_text(comparison, -5), to_text(comparison, 1));
}

TEST(CompareText, ManyStagesAreCountedNotListed) {
  const Timeline timeline = gpipe_timeline(66, 2);
  const std::string text = to_text(compare(timeline, timeline));
  EXPECT_THAT(text, AllOf(HasSubstr("\n   63  forward"), Not(HasSubstr("\n   64  forward"))));
  EXPECT_THAT(text, AllOf(HasSubstr("... and 2 more stages\n"), HasSubstr("... and 2 more workers\n")));
}

TEST(CompareText, AHostileNameIsHarmless) {
  Timeline timeline = one_f_one_b_timeline(1, 1);
  timeline.name = "a\x1b[2J\xff";
  const Comparison comparison = compare(timeline, timeline);
  EXPECT_THAT(to_text(comparison), HasSubstr("a?[2J?  1 stage  1 micro-batch\n"));
  EXPECT_TRUE(nlohmann::json::accept(to_json(comparison)));
}

TEST(CompareJson, HasEverything) {
  Timeline predicted = two_stages(1, 2, 0.5);
  Timeline measured = two_stages(1, 2.5, 0);
  predicted.workers[1].peak_bytes = 3;
  measured.workers[1].peak_bytes = 4;
  const auto json = nlohmann::json::parse(to_json(compare(predicted, measured, {{10, 20}, {20, 20}})));
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["num_workers"], 2);
  EXPECT_EQ(json["num_stages"], 2);
  EXPECT_EQ(json["num_micro_batches"], 2);
  EXPECT_EQ(json["step_seconds"]["predicted"], predicted.makespan_seconds);
  EXPECT_EQ(json["step_seconds"]["measured"], measured.makespan_seconds);
  EXPECT_EQ(json["step_seconds"]["ratio"], predicted.makespan_seconds / measured.makespan_seconds);
  EXPECT_EQ(json["bubble_fraction"]["measured"], measured.bubble_fraction);
  const auto& backward = json["stages"][1]["actions"][1];
  EXPECT_EQ(backward["kind"], "backward");
  EXPECT_EQ(backward["num_actions"], 2);
  EXPECT_NEAR(backward["mean_seconds"]["measured"].get<double>(), 2.5e-3, 1e-12);
  EXPECT_NEAR(backward["total_seconds"]["predicted"].get<double>(), 4e-3, 1e-12);
  EXPECT_EQ(json["stages"][0]["peak_bytes"]["ratio"], 0.5);
  EXPECT_NEAR(json["workers"][0]["busy_seconds"]["predicted"].get<double>(), 6.5e-3, 1e-12);
  EXPECT_NEAR(json["workers"][0]["idle_seconds"]["predicted"].get<double>(), 3e-3, 1e-12);
  EXPECT_TRUE(json["workers"][0]["update_seconds"]["ratio"].is_null());
  EXPECT_FALSE(json["workers"][0].contains("peak_bytes"));
  EXPECT_EQ(json["workers"][1]["peak_bytes"]["measured"], 4);
}

}  // namespace
}  // namespace gpipe::test
