// A schedule that is written with few micro-batches is the one that the generator makes with all of them.
#include "gpipe/schedule/long_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpipe/error.h"
#include "gpipe/schedule/registry.h"

namespace gpipe {
namespace {

using detail::LongSchedule;
using detail::make_long_schedule;
using detail::peak_bytes_by_worker;
using detail::peak_live_by_stage;
using detail::recompute_share;
using detail::with_recompute;

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Recompute kModes[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};

// With every round that is added, at its place.
Schedule spelled_out(const LongSchedule& schedule) {
  Schedule result = schedule.written;
  result.num_micro_batches = static_cast<int>(schedule.num_micro_batches);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    const std::vector<Action>& written = schedule.written.workers[worker];
    std::vector<Action>& actions = result.workers[worker];
    actions.clear();
    const auto last = static_cast<int>(schedule.num_added_rounds);
    // Micro-batches behind a round of their own direction and stage are later by all rounds that were added there.
    std::vector<int> later(std::size_t{2} * static_cast<std::size_t>(schedule.num_stages()), 0);
    const auto direction_of = [](const Action& action) {
      return static_cast<std::size_t>(action.stage) * 2 + (action.kind == ActionKind::kForward ? 0 : 1);
    };
    const auto add = [&](int begin, int end, int by) {
      for (int index = begin; index < end; ++index) {
        Action action = written[index];
        action.micro_batch += by + later[direction_of(action)];
        actions.push_back(action);
      }
    };
    int at = 0;
    for (const LongSchedule::Round& round : schedule.rounds) {
      add(at, round.worker_end[worker], 0);
      for (int added = 1; added <= last; ++added) {
        add(round.worker_begin[worker], round.worker_end[worker], added * schedule.period);
      }
      at = round.worker_end[worker];
      for (int index = round.worker_begin[worker]; index < at; ++index) {
        later[direction_of(written[index])] = last * schedule.period;
      }
    }
    add(at, static_cast<int>(written.size()), 0);
  }
  return result;
}

int enough_for_rounds(int num_workers, int chunks) { return 10'100 / (num_workers * chunks) + 25 * num_workers + 40; }

TEST(LongSchedule, IsWhatTheGeneratorMakesOfAllMicroBatches) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int num_workers : {1, 2, 3, 4, 5, 7, 11, 16}) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        if (!takes_chunks(info, chunks)) continue;
        const int most = enough_for_rounds(num_workers, 1);
        for (const int num_micro_batches : {most, most + 1, most + num_workers - 1, most + num_workers}) {
          SCOPED_TRACE(std::string(info.name) + " " + std::to_string(num_workers) + " " +
                       std::to_string(num_micro_batches) + " " + std::to_string(chunks));
          const Schedule all = make_schedule(info.name, num_workers, num_micro_batches, chunks);
          const LongSchedule few = make_long_schedule(info.name, num_workers, num_micro_batches, chunks);
          EXPECT_EQ(few.num_micro_batches, num_micro_batches);
          EXPECT_THAT(few.order, SizeIs(few.written.num_actions()));
          ASSERT_EQ(spelled_out(few), all);
          for (const Recompute mode : kModes) {
            ASSERT_EQ(spelled_out(with_recompute(few, mode)), with_recompute(all, mode)) << name(mode);
          }
        }
      }
    }
  }
}

TEST(LongSchedule, IsWrittenWithFewActionsHoweverManyMicroBatchesThereAre) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int num_workers : {1, 2, 3, 4, 5, 6, 7, 8, 16, 64}) {
      const LongSchedule schedule = make_long_schedule(info.name, num_workers, 2147483647);
      EXPECT_GT(schedule.num_added_rounds, 0) << info.name << " " << num_workers;
      EXPECT_LE(schedule.written.num_micro_batches, 13 * num_workers + 17) << info.name << " " << num_workers;
    }
  }
}

TEST(LongSchedule, OfFewMicroBatchesIsWrittenOut) {
  const LongSchedule schedule = make_long_schedule("1f1b", 4, 32);
  EXPECT_EQ(schedule.written, make_schedule("1f1b", 4, 32));
  EXPECT_EQ(schedule.num_added_rounds, 0);
  EXPECT_THAT(schedule.rounds, IsEmpty());
}

TEST(LongSchedule, GoesThroughPhasesOrThroughOneRound) {
  EXPECT_TRUE(make_long_schedule("gpipe", 4, 1'000'000).is_in_phases);
  EXPECT_THAT(make_long_schedule("looped-bfs", 4, 1'000'000, 3).rounds, SizeIs(6));
  EXPECT_FALSE(make_long_schedule("1f1b", 4, 1'000'000).is_in_phases);
  EXPECT_THAT(make_long_schedule("1f1b", 4, 1'000'000).rounds, SizeIs(1));
}

TEST(LongSchedule, HoldsAndRecomputesWhatTheWholeScheduleDoes) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int num_workers : {1, 2, 3, 4, 7}) {
      const int num_micro_batches = enough_for_rounds(num_workers, 1);
      // Of several waves, a part of the micro-batches is recomputed on the last stage.
      const int chunks = info.default_chunks + info.chunks_step;
      for (const Recompute mode : kModes) {
        SCOPED_TRACE(std::string(info.name) + " " + std::to_string(num_workers) + " " + name(mode));
        const Schedule all = with_recompute(make_schedule(info.name, num_workers, num_micro_batches, chunks), mode);
        const LongSchedule few =
            with_recompute(make_long_schedule(info.name, num_workers, num_micro_batches, chunks), mode);
        EXPECT_GT(few.num_added_rounds, 0);
        std::vector<StageBytes> bytes;
        for (int stage = 0; stage < all.num_stages; ++stage) {
          bytes.push_back({1000 + stage, 100 + 7 * stage, 10 + stage, 3, 500 - 15 * stage, 150 * stage,
                           SplitBytes{90 + 9 * stage, 120 + 60 * stage, 400 - 10 * stage}});
        }
        EXPECT_EQ(peak_bytes_by_worker(few, bytes), peak_bytes_by_worker(all, bytes));
        const auto live = peak_live_by_stage(few);
        const auto all_live = peak_live_by_stage(all);
        std::vector<double> share(all.num_stages, 0);
        for (const auto& actions : all.workers) {
          for (const Action& action : actions) share[action.stage] += action.kind == ActionKind::kRecompute;
        }
        for (int stage = 0; stage < all.num_stages; ++stage) {
          EXPECT_EQ(recompute_share(few)[stage], share[stage] / num_micro_batches);
          for (const int other : {0, 1, 10}) {
            for (const Live::Work work : {Live::Work::kWhole, Live::Work::kInputGrad, Live::Work::kWeightGrad}) {
              const auto most = [&](const std::vector<Live>& held) {
                int largest = 0;
                for (const Live& one : held) {
                  if (one.work != work) continue;
                  largest = std::max(largest, 10 * one.activations + other * one.inputs + (10 - other) * one.deferred);
                }
                return largest;
              };
              EXPECT_EQ(most(live[stage]), most(all_live[stage])) << stage << " " << other;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gpipe
