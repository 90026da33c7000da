// The generators: their pictures, their counts, their order and their memory.
#include "gpipe/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "gpipe/error.h"
#include "gpipe/schedule/liveness.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

double peak(const Schedule& schedule) {
  const std::vector<double> peaks = peak_activations_by_worker(schedule);
  return *std::max_element(peaks.begin(), peaks.end());
}

TEST(Generators, GPipeRunsEveryForwardBeforeTheFirstBackward) {
  EXPECT_EQ(to_text(schedules::gpipe(2, 3)),
            "F0 F1 F2 B0 B1 B2\n"
            "F0 F1 F2 B0 B1 B2\n");
}

TEST(Generators, GPipeOffersThePapersDescendingOrder) {
  EXPECT_EQ(to_text(schedules::gpipe(2, 3, schedules::BackwardOrder::kDescending)),
            "F0 F1 F2 B2 B1 B0\n"
            "F0 F1 F2 B2 B1 B0\n");
}

TEST(Generators, OneFOneBHoldsKMinusSMicroBatches) {
  EXPECT_EQ(to_text(schedules::one_f_one_b(4, 5)),
            "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4\n"
            "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4\n"
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4\n"
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4\n");
  for (int k = 1; k <= 16; ++k) {
    for (int m = 1; m <= 32; ++m) {
      const std::vector<double> peaks = peak_activations_by_worker(schedules::one_f_one_b(k, m));
      for (int stage = 0; stage < k; ++stage) EXPECT_EQ(peaks[stage], std::min(m, k - stage));
    }
  }
}

TEST(Generators, GPipeHoldsEveryMicroBatch) { EXPECT_EQ(peak(schedules::gpipe(8, 16)), 16); }

TEST(Generators, InterleavedGoesThroughTheChunksInRoundsOfK) {
  EXPECT_EQ(to_text(schedules::interleaved(2, 4, 2)),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
}

TEST(Generators, InterleavedWithOneChunkIsOneFOneB) {
  EXPECT_EQ(schedules::interleaved(4, 6, 1), schedules::one_f_one_b(4, 6));
}

TEST(Generators, InterleavedTakesAnyNumberOfMicroBatches) {
  EXPECT_EQ(to_text(schedules::interleaved(2, 3, 2)),
            "0F0 0F1 2F0 2F1 0F2 2B0 2B1 2F2 0B0 0B1 2B2 0B2\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1B1 3F2 3B2 1B2\n");
}

TEST(Generators, HanayoGoesDownTheWorkersAndUpAgain) {
  EXPECT_EQ(to_text(schedules::hanayo(2, 4, 2)),
            "0F0 0F1 0F2 3F0 3B0 3F1 3B1 3F2 3B2 0F3 0B0 0B1 3F3 3B3 0B2 0B3\n"
            "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 2B1 1F3 1B1 2F3 2B2 1B2 2B3 1B3\n");
  EXPECT_EQ(schedules::hanayo(3, 1, 4).worker_of_stage, (std::vector<int>{0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0}));
}

TEST(Generators, HanayoOfOneWaveHoldsWhatInterleavedDoes) {
  for (int k = 1; k <= 12; ++k) {
    for (int m = 1; m <= 4 * k; ++m) {
      EXPECT_LE(peak(schedules::hanayo(k, m, 2)), k + (k - 1) / 2.0) << "K=" << k << " M=" << m;
    }
  }
}

TEST(Generators, ZeroBubbleSchedulesPutWeightGradientsWhereTheWorkerWouldIdle) {
  EXPECT_EQ(to_text(schedules::zb_h1(2, 4)),
            "F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3\n"
            "F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3\n");
}

TEST(Generators, DualPipeVHasForwardsBesideWholeBackwardsAndSplitOnesAtBothEnds) {
  const Schedule schedule = schedules::dualpipe_v(2, 4);
  EXPECT_EQ(
      to_csv(schedule),
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,"
      "0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,"
      "2W3,1W3\n");
}

TEST(Generators, DualPipeVHoldsHalfAMicroBatchMoreThanZbV) {
  for (int k = 1; k <= 8; ++k) {
    for (int m = 1; m <= 32; ++m) EXPECT_LE(peak(schedules::dualpipe_v(k, m)), k + 0.5) << "K=" << k << " M=" << m;
  }
}

TEST(Generators, PeakActivationsAreThoseOfTheLiterature) {
  EXPECT_EQ(peak(schedules::one_f_one_b(8, 16)), 8);
  EXPECT_EQ(peak(schedules::interleaved(8, 16, 2)), 11.5);
  EXPECT_EQ(peak(schedules::hanayo(8, 16, 2)), 11.5);
  EXPECT_EQ(peak(schedules::zb_h1(8, 16)), 8);
  EXPECT_EQ(peak(schedules::zb_v(8, 16)), 8);
  EXPECT_EQ(peak(schedules::zb_h2(8, 32)), 15);
}

TEST(Generators, ZeroBubbleSchedulesStayWithinTheirMemory) {
  for (int k = 1; k <= 16; ++k) {
    for (int m = 1; m <= 48; ++m) {
      EXPECT_LE(peak(schedules::zb_h1(k, m)), k) << "zb-h1 K=" << k << " M=" << m;
      EXPECT_LE(peak(schedules::zb_h2(k, m)), 2 * k - 1) << "zb-h2 K=" << k << " M=" << m;
      EXPECT_LE(peak(schedules::zb_v(k, m)), k) << "zb-v K=" << k << " M=" << m;
      EXPECT_LE(peak(schedules::v_half(k, m)), k / 2.0 + 1) << "v-half K=" << k << " M=" << m;
      const double third = k > 2 && k % 3 == 2 ? (k + 4) / 3.0 : k / 3.0 + 1;
      EXPECT_LE(peak(schedules::v_min(k, m)), third) << "v-min K=" << k << " M=" << m;
    }
  }
}

TEST(Generators, AllRunEveryStageInAscendingOrder) {
  for (int k = 1; k <= 5; ++k) {
    test::for_each_schedule(k, 7, 3, [](const Schedule& schedule, const std::string& description) {
      std::vector<int> forwards(schedule.num_stages);
      std::vector<int> input_grads(schedule.num_stages);  // of whole backwards and of split ones
      std::vector<int> weight_grads(schedule.num_stages);
      const auto expect_next = [&](std::vector<int>& next, const Action& action) {
        EXPECT_EQ(next[action.stage]++, action.micro_batch) << description << " " << to_string(action);
      };
      for (const auto& actions : schedule.workers) {
        for (const Action& action : actions) {
          if (action.kind == ActionKind::kForward) expect_next(forwards, action);
          if (makes_input_grad(action.kind)) expect_next(input_grads, action);
          if (makes_weight_grad(action.kind)) expect_next(weight_grads, action);
        }
      }
    });
  }
}

TEST(Generators, RefuseCountsBelowOne) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int bad : {0, -1, std::numeric_limits<int>::min()}) {
      EXPECT_THROW(make_schedule(info.name, bad, 4), InvalidArgument) << info.name;
      EXPECT_THROW(make_schedule(info.name, 4, bad), InvalidArgument) << info.name;
    }
  }
  EXPECT_THROW(make_schedule("interleaved", 4, 4, -1), InvalidArgument);
}

TEST(Generators, RefuseHostileSizesBeforeMakingAnything) {
  constexpr int kHuge = std::numeric_limits<int>::max();
  for (const ScheduleInfo& info : schedule_registry()) {
    EXPECT_THROW(make_schedule(info.name, kHuge, kHuge), InvalidArgument) << info.name;
    EXPECT_THROW(make_schedule(info.name, 1000000000, 1), InvalidArgument) << info.name;
    EXPECT_THROW(make_schedule(info.name, 1, 1000000000), InvalidArgument) << info.name;
  }
  EXPECT_THROW(make_schedule("interleaved", 1 << 20, 1, 2), InvalidArgument);
  EXPECT_THROW(make_schedule("zb-v", 1 << 20, 1), InvalidArgument);
}

TEST(Generators, TakeTimeForTheActionsThereAreNotForTheSquareOfTheWorkers) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const Schedule schedule = make_schedule(info.name, 8192, 1);
    const std::vector<Action>& actions = schedule.workers[0];
    EXPECT_EQ(std::count_if(actions.begin(), actions.end(),
                            [](const Action& action) { return action.kind == ActionKind::kForward; }),
              info.default_chunks)
        << info.name;
    EXPECT_EQ(schedule.num_micro_batches, 1) << info.name;
  }
}

TEST(Registry, AnswersAnUnknownNameWithTheNearestOne) {
  try {
    make_schedule("1fb1", 2, 2);
    FAIL() << "1fb1 was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 1f1b?"));
  }
}

TEST(Registry, OffersWhatCanBeNamed) {
  EXPECT_EQ(training_schedule_names().size() + 1, schedule_registry().size());
  try {
    find_schedule("forwrd", training_schedule_names());
    FAIL() << "forwrd was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("The schedules are gpipe, 1f1b"), Not(HasSubstr("forward"))));
  }
}

TEST(Registry, NamesAScheduleOfOneStageAWorkerForEveryOther) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const ScheduleInfo& other = with_one_stage_a_worker(info);
    EXPECT_EQ(other.default_chunks, 1) << info.name;
    EXPECT_EQ(other.generate(2, 4, 1).splits_backward(), info.generate(2, 4, info.default_chunks).splits_backward())
        << info.name;
  }
  EXPECT_STREQ(with_one_stage_a_worker(find_schedule("zb-v")).name, "zb-h1");
  EXPECT_STREQ(with_one_stage_a_worker(find_schedule("hanayo")).name, "1f1b");
}

TEST(Registry, RefusesChunksAScheduleCannotTake) {
  EXPECT_THROW(make_schedule("1f1b", 2, 2, 2), InvalidArgument);
  EXPECT_THROW(make_schedule("zb-v", 2, 2, 3), InvalidArgument);
  EXPECT_EQ(make_schedule("zb-v", 2, 2, 2), schedules::zb_v(2, 2));
  EXPECT_THROW(make_schedule("hanayo", 2, 2, 3), InvalidArgument);
  EXPECT_THROW(schedules::hanayo(2, 2, 3), InvalidArgument);
  EXPECT_EQ(make_schedule("hanayo", 2, 2, 4), schedules::hanayo(2, 2, 4));
}

}  // namespace
}  // namespace gpipe
