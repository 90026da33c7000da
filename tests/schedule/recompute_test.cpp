// The recompute pass and what it does to memory.
#include "gpipe/schedule/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/validate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

TEST(Recompute, StandsDirectlyBeforeTheBackward) {
  EXPECT_EQ(to_text(with_recompute(schedules::gpipe(1, 3), Recompute::kAlways)), "F0 F1 F2 R0 B0 R1 B1 R2 B2\n");
  EXPECT_EQ(to_text(with_recompute(schedules::one_f_one_b(2, 3), Recompute::kAlways)),
            "F0 F1 R0 B0 F2 R1 B1 R2 B2\n"
            "F0 B0 F1 B1 F2 B2\n");
}

TEST(Recompute, ExceptLastLeavesTheLastMicroBatchOut) {
  EXPECT_EQ(to_text(with_recompute(schedules::gpipe(1, 3), Recompute::kExceptLast)), "F0 F1 F2 R0 B0 R1 B1 B2\n");
}

TEST(Recompute, IsSkippedWhereTheActivationsAreStillThere) {
  EXPECT_EQ(to_text(with_recompute(schedules::gpipe(1, 1), Recompute::kAlways)), "F0 B0\n");
}

TEST(Recompute, GoesBeforeTheInputGradientOfASplitBackward) {
  const Schedule schedule = with_recompute(schedules::zb_h1(4, 8), Recompute::kAlways);
  for (const auto& actions : schedule.workers) {
    for (std::size_t index = 0; index < actions.size(); ++index) {
      if (actions[index].kind != ActionKind::kRecompute) continue;
      ASSERT_LT(index + 1, actions.size());
      EXPECT_EQ(actions[index + 1].kind, ActionKind::kInputGrad);
      EXPECT_EQ(actions[index + 1].micro_batch, actions[index].micro_batch);
    }
  }
  EXPECT_NO_THROW(validate(schedule));
}

TEST(Recompute, ReplacesWhatWasThere) {
  const Schedule plain = schedules::gpipe(2, 4);
  EXPECT_EQ(with_recompute(with_recompute(plain, Recompute::kAlways), Recompute::kNever), plain);
  EXPECT_EQ(with_recompute(with_recompute(plain, Recompute::kExceptLast), Recompute::kAlways),
            with_recompute(plain, Recompute::kAlways));
}

TEST(Recompute, EveryScheduleStaysValidInEveryMode) {
  for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
    test::for_each_schedule(4, 9, 3, [&](const Schedule& schedule, const std::string& description) {
      EXPECT_NO_THROW(validate(with_recompute(schedule, mode))) << description;
    });
  }
}

TEST(Recompute, ModesAreReadAndWrittenByName) {
  for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever, Recompute::kAuto}) {
    EXPECT_EQ(parse_recompute(name(mode)), mode);
  }
  EXPECT_THROW(parse_recompute("sometimes"), InvalidArgument);
}

TEST(Recompute, AStageCanHaveAModeOfItsOwn) {
  const Schedule schedule = with_recompute(
      schedules::gpipe(3, 2), std::vector<Recompute>{Recompute::kAlways, Recompute::kNever, Recompute::kExceptLast});
  EXPECT_EQ(to_text(schedule), "F0 F1 R0 B0 R1 B1\nF0 F1 B0 B1\nF0 F1 R0 B0 B1\n");
  EXPECT_THROW(with_recompute(schedules::gpipe(3, 2), std::vector<Recompute>(2, Recompute::kNever)), InvalidArgument);
}

TEST(Recompute, AutoIsChosenByAPlanAndByNothingElse) {
  EXPECT_THROW(with_recompute(schedules::gpipe(2, 2), Recompute::kAuto), InvalidArgument);
  EXPECT_THROW(with_recompute(schedules::gpipe(1, 2), std::vector<Recompute>{Recompute::kAuto}), InvalidArgument);
}

TEST(Liveness, RecomputeKeepsTheInputsAndOneMicroBatchOfActivations) {
  const auto live = peak_live_by_stage(with_recompute(schedules::gpipe(2, 8), Recompute::kAlways));
  ASSERT_EQ(live[0].size(), 1u);
  EXPECT_EQ(live[0][0].activations, 1);
  EXPECT_EQ(live[0][0].inputs, 7);  // of the one at work, the activations count
}

TEST(Liveness, KeepsTheHoldingsOfWhichNoneCoversAnother) {
  // The last micro-batch keeps its activations; the others bring theirs back one at a time.
  const auto live = peak_live_by_stage(with_recompute(schedules::gpipe(1, 3), Recompute::kExceptLast));
  ASSERT_EQ(live[0].size(), 2u);
  EXPECT_EQ(live[0][0].activations, 1);  // the last forward
  EXPECT_EQ(live[0][0].inputs, 2);
  EXPECT_EQ(live[0][1].activations, 2);
  EXPECT_EQ(live[0][1].inputs, 1);
}

TEST(Liveness, PeakBytesAddWeightsInputsAndActivations) {
  const std::vector<StageBytes> bytes(2, StageBytes{1000, 100, 10});
  EXPECT_EQ(peak_bytes_by_worker(schedules::gpipe(2, 8), bytes), (std::vector<std::int64_t>{1810, 1810}));
  EXPECT_EQ(peak_bytes_by_worker(with_recompute(schedules::gpipe(2, 8), Recompute::kAlways), bytes),
            (std::vector<std::int64_t>{1180, 1180}));
  EXPECT_EQ(peak_bytes_by_worker(schedules::one_f_one_b(2, 8), bytes), (std::vector<std::int64_t>{1210, 1110}));
  EXPECT_EQ(peak_bytes_by_worker(schedules::forward_only(2, 8), bytes), (std::vector<std::int64_t>{1110, 1110}));
}

TEST(Liveness, OneMicroBatchIsWorkedOnAndTheOthersAreHeld) {
  // 7 · (100 + 4) held, 300 and an input of 10 at work.
  const std::vector<StageBytes> bytes(1, StageBytes{1000, 100, 10, 4, 300, 200});
  EXPECT_EQ(peak_bytes_by_worker(schedules::gpipe(1, 8), bytes), (std::vector<std::int64_t>{1000 + 7 * 104 + 310}));
  // Seven inputs held, and the eighth with the forward whose graph is dropped.
  EXPECT_EQ(peak_bytes_by_worker(with_recompute(schedules::gpipe(1, 8), Recompute::kAlways), bytes),
            (std::vector<std::int64_t>{1000 + 7 * 10 + 310}));
  // A backward that needs more, with what is kept of the input.
  EXPECT_EQ(peak_bytes_by_worker(schedules::gpipe(1, 8), {StageBytes{1000, 100, 10, 4, 300, 400}}),
            (std::vector<std::int64_t>{1000 + 7 * 104 + 404}));
  // The backward of the large stage is the peak, when the small one on the same worker holds its activations, too.
  const std::vector<StageBytes> unequal = {StageBytes{0, 1, 0, 0, 50, 50}, StageBytes{0, 20, 0, 0, 20, 20}};
  EXPECT_EQ(peak_bytes_by_worker(schedules::looped_bfs(1, 2, 2), unequal), (std::vector<std::int64_t>{51}));
  EXPECT_EQ(peak_bytes_by_worker(parse_text("0F0 1F0 0F1 1F1 0B0 1B0 1B1 0B1"), unequal),
            (std::vector<std::int64_t>{50 + 1 + 40}));
}

TEST(Liveness, FromTheInputGradientToTheWeightGradientWhatIsDeferredIsHeld) {
  const auto peak = [](const char* text, const SplitBytes& split) {
    return peak_bytes_by_worker(parse_text(text), {StageBytes{1000, 100, 10, 4, 110, 120, split}}).front();
  };
  // Two others deferred, and the third in its forward: 110 and its input.
  EXPECT_EQ(peak("F0 I0 F1 I1 F2 I2 W0 W1 W2", {50, 105, 60}), 1000 + 2 * 50 + 110 + 10);
  // The third in its input gradient, with what is kept of the input.
  EXPECT_EQ(peak("F0 I0 F1 I1 F2 I2 W0 W1 W2", {50, 130, 60}), 1000 + 2 * 50 + 130 + 4);
  // All three, of which one in its weight gradient.
  EXPECT_EQ(peak("F0 I0 F1 I1 F2 I2 W0 W1 W2", {50, 105, 200}), 1000 + 2 * 50 + 200);
  EXPECT_EQ(peak("F0 I0 F1 I1 F2 I2 W0 W1 W2", {150, 105, 0}), 1000 + 3 * 150);
  // Two more that keep their activations and a part of the input.
  EXPECT_EQ(peak("F0 F1 F2 I0 W0 I1 W1 I2 W2", {50, 130, 60}), 1000 + 2 * 104 + 130 + 4);
  // A whole backward next to what is deferred.
  EXPECT_EQ(peak("F0 I0 F1 B1 W0", {50, 0, 0}), 1000 + 50 + 120 + 4);
}

TEST(Liveness, CountsMicroBatchesByWhatIsHeldOfThem) {
  const auto live = peak_live_by_stage(parse_text("F0 F1 I0 I1 W0 F2 W1 I2 W2"))[0];
  const auto count = [&](Live::Work work, int activations, int deferred) {
    return std::count_if(live.begin(), live.end(), [&](const Live& one) {
      return one.work == work && one.activations == activations && one.deferred == deferred && one.inputs == 0;
    });
  };
  EXPECT_EQ(live.size(), 6u);
  EXPECT_EQ(count(Live::Work::kWhole, 2, 0), 1);       // F1
  EXPECT_EQ(count(Live::Work::kWhole, 1, 1), 1);       // F2, beside 1
  EXPECT_EQ(count(Live::Work::kInputGrad, 2, 0), 1);   // I0, beside the activations of 1
  EXPECT_EQ(count(Live::Work::kInputGrad, 1, 1), 1);   // I1, beside what is deferred of 0
  EXPECT_EQ(count(Live::Work::kWeightGrad, 1, 1), 1);  // W0
  EXPECT_EQ(count(Live::Work::kWeightGrad, 2, 0), 1);  // W1, beside the activations of 2
}

TEST(Liveness, WithoutKnowledgeOfTheSplitAWeightGradientNeedsWhatABackwardDoes) {
  const std::vector<StageBytes> bytes(1, StageBytes{1000, 100, 10, 4, 110, 120});
  EXPECT_EQ(peak_bytes_by_worker(parse_text("F0 I0 F1 I1 W0 W1"), bytes),
            (std::vector<std::int64_t>{1000 + 104 + 124}));
}

TEST(Liveness, PeakBytesDoNotOverflow) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<StageBytes> bytes(1, StageBytes{kMax, kMax, kMax, 0, 0, 0, SplitBytes{kMax, kMax, kMax}});
  EXPECT_EQ(peak_bytes_by_worker(schedules::gpipe(1, 8), bytes), (std::vector<std::int64_t>{kMax}));
  EXPECT_EQ(peak_bytes_by_worker(schedules::zb_h1(1, 8), bytes), (std::vector<std::int64_t>{kMax}));
  ValidateOptions options;
  options.stages = bytes;
  options.memory_limit_bytes = {1000};
  EXPECT_THROW(validate(schedules::gpipe(1, 8), options), ScheduleError);
}

}  // namespace
}  // namespace gpipe
