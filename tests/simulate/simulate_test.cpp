// The simulator: the figures of the literature, and what every cost does to the timeline.
#include "gpipe/simulate/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/validate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

Timeline run(const Schedule& schedule, const StageCosts& share = {}) {
  return simulate(schedule, uniform_costs(schedule, share));
}

double sum(const Breakdown& b) {
  return b.useful_seconds + b.recompute_seconds + b.weight_update_seconds + b.load_imbalance_seconds +
         b.bubble_seconds + b.communication_seconds;
}

// Idle seconds of a worker between its first and its last action.
double idle_inside(const WorkerTimeline& worker) {
  double idle = 0;
  for (std::size_t index = 1; index < worker.spans.size(); ++index) {
    idle += worker.spans[index].start_seconds - worker.spans[index - 1].end_seconds;
  }
  return idle;
}

Costs random_costs(const Schedule& schedule, std::mt19937& random) {
  std::uniform_real_distribution<double> seconds(0.1, 3);
  Costs costs = uniform_costs(schedule);
  for (StageCosts& stage : costs.stages) {
    for (double* cost : {&stage.forward_seconds, &stage.backward_seconds, &stage.input_grad_seconds,
                         &stage.weight_grad_seconds, &stage.recompute_seconds, &stage.update_seconds}) {
      *cost = seconds(random);
    }
    stage.output_bytes = static_cast<std::int64_t>(1000 * seconds(random));
  }
  costs.link.latency_seconds = 0.1 * seconds(random);
  costs.link.bytes_per_second = 10000;
  costs.workers.resize(schedule.num_workers());
  for (WorkerCosts& worker : costs.workers) worker.speed = seconds(random);
  return costs;
}

TEST(Simulate, BubbleOfGPipeAndOneFOneBIsKMinusOneOverMPlusKMinusOne) {
  for (int k = 1; k <= 16; ++k) {
    for (int m = 1; m <= 64; ++m) {
      const double expected = (k - 1.0) / (m + k - 1.0);
      for (const double backward : {1.0, 2.0, 0.5}) {
        StageCosts share;
        share.backward_seconds = backward;
        EXPECT_NEAR(run(schedules::gpipe(k, m), share).bubble_fraction, expected, 1e-12) << k << " " << m;
        EXPECT_NEAR(run(schedules::one_f_one_b(k, m), share).bubble_fraction, expected, 1e-12) << k << " " << m;
      }
    }
  }
}

TEST(Simulate, BubbleOfInterleavedIsAVthOfIt) {
  for (int k = 1; k <= 8; ++k) {
    for (int v = 1; v <= 4; ++v) {
      for (int rounds = 1; rounds <= 4; ++rounds) {
        const int m = k * rounds;
        EXPECT_NEAR(run(schedules::interleaved(k, m, v)).bubble_fraction, (k - 1.0) / (v * m + k - 1.0), 1e-12)
            << "K=" << k << " M=" << m << " v=" << v;
      }
    }
  }
}

// In units of a chunk's forward: what the last worker idles at least, before its first backward and after its last.
int least_idle_of_waves(int num_workers, int num_micro_batches, int waves) {
  const int chunks = 2 * waves;
  const int first_backward = chunks * num_workers + 2 * (num_workers - 1);
  return std::max(num_workers - 1, first_backward - chunks * num_micro_batches) + 2 * (num_workers - 1);
}

TEST(Simulate, HanayoOfOneWaveIsAsShortAsWholeBackwardsCanBe) {
  for (int k = 1; k <= 12; ++k) {
    for (int m = 1; m <= 4 * k; ++m) {
      EXPECT_DOUBLE_EQ(run(schedules::hanayo(k, m, 2)).makespan_seconds, (6 * m + least_idle_of_waves(k, m, 1)) / 2.0)
          << "K=" << k << " M=" << m;
    }
  }
}

TEST(Simulate, HanayoOfMoreWavesIsLongerByAtMostKForwardsOfAChunk) {
  for (int waves = 2; waves <= 4; ++waves) {
    for (int k = 1; k <= 8; ++k) {
      for (int rounds = 1; rounds <= 6; ++rounds) {
        const int m = k * rounds;
        const double units = run(schedules::hanayo(k, m, 2 * waves)).makespan_seconds * 2 * waves;
        EXPECT_LE(units, 6 * waves * m + least_idle_of_waves(k, m, waves) + k + 1e-9)
            << "K=" << k << " M=" << m << " waves=" << waves;
      }
    }
  }
}

TEST(Simulate, FiguresOfTheLiteratureAtK8M16) {
  EXPECT_NEAR(run(schedules::one_f_one_b(8, 16)).bubble_fraction, 0.304, 0.0005);
  EXPECT_NEAR(run(schedules::interleaved(8, 16, 2)).bubble_fraction, 0.179, 0.0006);
  EXPECT_NEAR(run(schedules::hanayo(8, 16, 2)).bubble_fraction, 0.179, 0.0006);
  EXPECT_LE(run(schedules::zb_h1(8, 16)).bubble_fraction, 0.1273);
  EXPECT_LE(run(schedules::zb_v(8, 16)).bubble_fraction, 0.068);
  EXPECT_LE(run(schedules::v_half(8, 16)).bubble_fraction, 0.304 * 0.6);
  EXPECT_NEAR(run(schedules::v_min(8, 16)).bubble_fraction, 0.22, 0.0005);
  EXPECT_EQ(run(schedules::one_f_one_b(8, 16)).workers[0].peak_activations, 8);
}

TEST(Simulate, ZeroBubbleH1LeavesAThirdOfOneFOneBsBubbleTime) {
  for (int k = 2; k <= 12; ++k) {
    const int m = 3 * k;
    EXPECT_DOUBLE_EQ(run(schedules::zb_h1(k, m)).makespan_seconds, 3.0 * m + (k - 1)) << k;
  }
}

TEST(Simulate, ZeroBubbleH2AndVNeverIdleBetweenFirstAndLastAction) {
  for (int k = 1; k <= 12; ++k) {
    for (const Schedule& schedule : {schedules::zb_h2(k, 3 * k), schedules::zb_v(k, 3 * k)}) {
      for (const WorkerTimeline& worker : run(schedule).workers)
        EXPECT_NEAR(idle_inside(worker), 0, 1e-9) << schedule.name << " " << k;
    }
  }
}

TEST(Simulate, VHalfHasAtMostHalfOfOneFOneBsBubbleTime) {
  for (int k = 2; k <= 16; ++k) {
    const int m = 4 * k;
    EXPECT_LE(run(schedules::v_half(k, m)).makespan_seconds - 3 * m, 0.5 * 3 * (k - 1) + 1e-9) << k;
  }
}

TEST(Simulate, VMinHasAtMostTwoThirdsOfOneFOneBsBubbleTime) {
  for (int k = 2; k <= 16; ++k) {
    const int m = 4 * k;
    EXPECT_LE(run(schedules::v_min(k, m)).makespan_seconds - 3 * m, 2.0 / 3 * 3 * (k - 1) + 1e-9) << k;
  }
}

TEST(Simulate, RecomputeRunsWhileTheGradientIsOnItsWay) {
  const Schedule schedule = with_recompute(schedules::gpipe(4, 8), Recompute::kAlways);
  const Timeline timeline = run(schedule);
  // All forwards and the first recompute are done before the first gradient arrives.
  const auto& spans = timeline.workers[0].spans;
  EXPECT_EQ(spans[8].action.kind, ActionKind::kRecompute);
  EXPECT_DOUBLE_EQ(spans[8].start_seconds, 8);
  EXPECT_LT(spans[8].end_seconds, spans[9].start_seconds);
  EXPECT_DOUBLE_EQ(timeline.breakdown.recompute_seconds, 4 * 8);
}

// With a stage a worker, an update of the schedule takes its time where the worker would take it anyway. With several
// it may come earlier: a stage that is done is updated while its worker waits.
TEST(Simulate, UpdatesTakeTheirTimeInTheSchedule) {
  Costs costs = uniform_costs(schedules::one_f_one_b(3, 4));
  costs.stages[1].update_seconds = 2.5;
  const Timeline implied = simulate(schedules::one_f_one_b(3, 4), costs);
  const Timeline written = simulate(with_updates(schedules::one_f_one_b(3, 4)), costs);
  EXPECT_EQ(written.makespan_seconds, implied.makespan_seconds);
  EXPECT_EQ(written.bubble_fraction, implied.bubble_fraction);
  EXPECT_EQ(written.breakdown.weight_update_seconds, implied.breakdown.weight_update_seconds);
  EXPECT_EQ(written.breakdown.useful_seconds, implied.breakdown.useful_seconds);
  EXPECT_EQ(written.breakdown.weight_update_seconds, 2.5);
  const Span& update = written.workers[1].spans.back();
  EXPECT_EQ(update.action, (Action{ActionKind::kUpdate, 1, 0}));
  EXPECT_EQ(update.end_seconds - update.start_seconds, 2.5);

  const Schedule early = parse_schedule("0F0 3F0 3B0 3U 0B0 0U\n1F0 2F0 2B0 1B0 1U 2U\n");
  costs = uniform_costs(early);
  costs.stages[3].update_seconds = 1;
  EXPECT_EQ(simulate(early, costs).makespan_seconds + 1, simulate(without_updates(early), costs).makespan_seconds);
}

TEST(Simulate, EveryActionRunsOnceInProgramOrderWithoutOverlap) {
  std::mt19937 random(7);
  test::for_each_schedule(4, 6, 2, [&](const Schedule& schedule, const std::string& description) {
    const Timeline timeline = simulate(schedule, random_costs(schedule, random));
    for (int worker = 0; worker < schedule.num_workers(); ++worker) {
      const auto& spans = timeline.workers[worker].spans;
      ASSERT_EQ(spans.size(), schedule.workers[worker].size()) << description;
      for (std::size_t index = 0; index < spans.size(); ++index) {
        EXPECT_EQ(spans[index].action, schedule.workers[worker][index]) << description;
        if (index == 0) continue;
        EXPECT_GE(spans[index].start_seconds, spans[index - 1].end_seconds) << description;
      }
    }
  });
}

TEST(Simulate, BreakdownAddsUpToWorkersTimesMakespan) {
  std::mt19937 random(11);
  test::for_each_schedule(5, 7, 3, [&](const Schedule& schedule, const std::string& description) {
    const Schedule with = with_recompute(schedule, Recompute::kExceptLast);
    const Timeline timeline = simulate(with, random_costs(with, random));
    const double total = timeline.num_workers() * timeline.makespan_seconds;
    EXPECT_NEAR(sum(timeline.breakdown), total, 1e-9 * total) << description;
    EXPECT_GE(timeline.breakdown.communication_seconds, 0) << description;
    double idle = 0;
    for (const WorkerTimeline& worker : timeline.workers) {
      EXPECT_NEAR(worker.busy_seconds + worker.idle_seconds, timeline.makespan_seconds, 1e-9) << description;
      idle += worker.idle_seconds;
    }
    EXPECT_NEAR(timeline.bubble_fraction, idle / total, 1e-12) << description;
  });
}

TEST(Simulate, CriticalPathIsAnUnbrokenChainFromStartToEnd) {
  std::mt19937 random(13);
  test::for_each_schedule(4, 6, 2, [&](const Schedule& schedule, const std::string& description) {
    Costs costs = random_costs(schedule, random);
    costs.link = {};
    for (StageCosts& stage : costs.stages) stage.update_seconds = 0;
    const Timeline timeline = simulate(schedule, costs);
    double at = 0;
    ASSERT_FALSE(timeline.critical_path.empty()) << description;
    for (const SpanRef& ref : timeline.critical_path) {
      const Span& span = timeline.workers[ref.worker].spans[ref.index];
      EXPECT_DOUBLE_EQ(span.start_seconds, at) << description;
      at = span.end_seconds;
    }
    EXPECT_DOUBLE_EQ(at, timeline.makespan_seconds) << description;
  });
}

TEST(Simulate, MessagesTakeTransferTimeAndLatencyAndQueueOnTheirFlow) {
  const Schedule schedule = schedules::forward_only(2, 3);
  Costs costs = uniform_costs(schedule);
  costs.stages[0].output_bytes = 200;
  costs.link = {0.5, 100};  // two seconds a message, and the link is busy meanwhile
  const Timeline timeline = simulate(schedule, costs);
  const auto& spans = timeline.workers[1].spans;
  EXPECT_DOUBLE_EQ(spans[0].start_seconds, 1 + 2 + 0.5);
  EXPECT_DOUBLE_EQ(spans[1].start_seconds, 1 + 4 + 0.5);
  EXPECT_DOUBLE_EQ(spans[2].start_seconds, 1 + 6 + 0.5);
  EXPECT_DOUBLE_EQ(timeline.breakdown.communication_seconds, 2 * (8.5 - 4));
}

TEST(Simulate, StagesOnOneWorkerHandOverForNothing) {
  const Schedule schedule = schedules::zb_v(1, 2);
  Costs costs = uniform_costs(schedule);
  for (StageCosts& stage : costs.stages) stage.output_bytes = 1000000;
  costs.link = {10, 1};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).bubble_fraction, 0);
}

TEST(Simulate, AFullFlowMakesItsSenderWait) {
  const Schedule schedule = schedules::forward_only(2, 4);
  Costs costs = uniform_costs(schedule);
  costs.stages[1].forward_seconds = 10;
  const Timeline timeline = simulate(schedule, costs, {{1}, true});
  // F2 ends at 3, but its message has room only when stage 1 starts on F1, at 11; so F3 starts then.
  EXPECT_DOUBLE_EQ(timeline.workers[0].spans[2].start_seconds, 2);
  EXPECT_DOUBLE_EQ(timeline.workers[0].spans[3].start_seconds, 11);
  EXPECT_DOUBLE_EQ(timeline.makespan_seconds, 41);
}

TEST(Simulate, FreeCapacitiesCostNoTimeWhateverTheCosts) {
  std::mt19937 random(17);
  for (int round = 0; round < 20; ++round) {
    test::for_each_schedule(4, 7, 2, [&](const Schedule& schedule, const std::string& description) {
      const Costs costs = random_costs(schedule, random);
      SimulateOptions options;
      for (const FlowCertificate& flow : validate(schedule).flows)
        options.capacities.push_back(flow.free_capacity.value());
      EXPECT_EQ(simulate(schedule, costs, options).makespan_seconds, simulate(schedule, costs).makespan_seconds)
          << description;
    });
  }
}

TEST(Simulate, OneLessThanTheFreeCapacityCostsTimeForSomeCosts) {
  const Schedule schedule = schedules::gpipe(2, 4);
  const std::vector<FlowCertificate> flows = validate(schedule).flows;
  ASSERT_EQ(flows[0].free_capacity, 4);
  ASSERT_EQ(flows[1].free_capacity, 4);
  Costs costs = uniform_costs(schedule);
  costs.link.latency_seconds = 100;  // the first message is still on its way when the last one is ready to leave
  const double free = simulate(schedule, costs, {{4, 4}, true}).makespan_seconds;
  EXPECT_EQ(free, simulate(schedule, costs).makespan_seconds);
  EXPECT_GT(simulate(schedule, costs, {{3, 4}, true}).makespan_seconds, free);
  EXPECT_GT(simulate(schedule, costs, {{4, 3}, true}).makespan_seconds, free);
}

TEST(Simulate, SlowWorkersTakeLonger) {
  const Schedule schedule = schedules::gpipe(2, 4);
  Costs costs = uniform_costs(schedule);
  costs.workers = workers_of_speed({1, 0.5});
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.workers[0].busy_seconds, 12);
  EXPECT_DOUBLE_EQ(timeline.workers[1].busy_seconds, 24);
  EXPECT_DOUBLE_EQ(timeline.breakdown.load_imbalance_seconds, 12);
}

TEST(Simulate, TheOptimizerStepWaitsForTiedGradients) {
  const Schedule schedule = schedules::gpipe(2, 2);
  Costs costs = uniform_costs(schedule);
  for (StageCosts& stage : costs.stages) stage.update_seconds = 5;
  costs.routes.ties = {{1, 0}};
  costs.tie_bytes = {700};
  costs.link.bytes_per_second = 100;
  const Timeline timeline = simulate(schedule, costs);
  const double last_backward = timeline.workers[0].spans.back().end_seconds;
  EXPECT_DOUBLE_EQ(timeline.workers[0].update_end_seconds, last_backward + 5);
  EXPECT_DOUBLE_EQ(timeline.workers[1].update_start_seconds, last_backward + 7);
  EXPECT_DOUBLE_EQ(timeline.makespan_seconds, last_backward + 12);
  EXPECT_DOUBLE_EQ(timeline.breakdown.weight_update_seconds, 10);
}

TEST(Simulate, SkipsTravelStraightToTheirStage) {
  const Schedule schedule = schedules::forward_only(3, 1);
  Costs costs = uniform_costs(schedule);
  costs.routes.skips = {{0, 2}};
  costs.skip_bytes = {1000};
  costs.link.bytes_per_second = 100;
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).workers[2].spans[0].start_seconds, 11);
}

TEST(Simulate, MessagesFromOneWorkerToAnotherShareALink) {
  const Schedule schedule = schedules::forward_only(2, 2);
  Costs costs = uniform_costs(schedule);
  costs.stages[0].output_bytes = 200;
  costs.routes.skips = {{0, 1}};
  costs.skip_bytes = {300};
  costs.link.bytes_per_second = 100;
  // Forwards end at 1 and 2; the link carries 1-3 activation 0, 3-6 skip 0, 6-8 activation 1, 8-11 skip 1.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[0].start_seconds, 6);
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[1].start_seconds, 11);
}

TEST(Simulate, StagesOfOneWorkerShareItsLinks) {
  // Four stages on two workers: stage 0 sends to 1, and stage 2 to 3, over the same link.
  const Schedule schedule = schedules::looped_bfs(2, 2, 2);
  Costs costs = uniform_costs(schedule, {2, 4});  // a forward takes 1
  for (StageCosts& stage : costs.stages) stage.output_bytes = 400;
  costs.stages[1].output_bytes = 0;
  costs.link.bytes_per_second = 100;
  // The link carries 1-5 and 5-9 for stage 1, which ends at 6 and 10; stage 2 ends at 7 and 11.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[2].start_seconds, 13);  // 7-9 the link is busy
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[3].start_seconds, 17);
}

TEST(Simulate, MessagesDoNotWaitForThoseOfTheOtherDirection) {
  const Schedule schedule = parse_text("F0 F1 B0 B1\nF0 B0 F1 B1\n");
  Costs costs = uniform_costs(schedule);
  for (StageCosts& stage : costs.stages) stage.output_bytes = 1000;
  costs.link.bytes_per_second = 100;
  // There: 1-11 and 11-21. Back: 14-24, while the second activation is under way, and 24-34.
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.workers[0].spans[2].start_seconds, 24);
  EXPECT_DOUBLE_EQ(timeline.makespan_seconds, 36);
}

TEST(Simulate, MessagesCrossAllLinksBetweenTheirWorkers) {
  const Schedule schedule = schedules::forward_only(3, 1);
  Costs costs = uniform_costs(schedule);
  costs.workers.resize(3);
  costs.workers[0].link_to_next = LinkCosts{1, 100};
  costs.workers[1].link_to_next = LinkCosts{10, 50};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).workers[2].spans[0].start_seconds, 1 + 1 + 1 + 10);
  costs.routes.skips = {{0, 2}};
  costs.skip_bytes = {1000};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).workers[2].spans[0].start_seconds, 1 + 20 + 11);
}

TEST(Simulate, RefusesCostsThatDoNotFit) {
  const Schedule schedule = schedules::gpipe(2, 2);
  EXPECT_THROW(simulate(schedule, Costs{}), InvalidArgument);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Costs costs = uniform_costs(schedule);
    costs.stages[1].forward_seconds = bad;
    EXPECT_THROW(simulate(schedule, costs), InvalidArgument) << bad;
    costs = uniform_costs(schedule);
    costs.link.latency_seconds = bad;
    EXPECT_THROW(simulate(schedule, costs), InvalidArgument) << bad;
    costs = uniform_costs(schedule);
    costs.workers = workers_of_speed({1, bad});
    EXPECT_THROW(simulate(schedule, costs), InvalidArgument) << bad;
  }
  Costs costs = uniform_costs(schedule);
  costs.stages[0].forward_seconds = std::numeric_limits<double>::max();  // finite, but twice of it is not
  EXPECT_THROW(simulate(schedule, costs), InvalidArgument);
  costs = uniform_costs(schedule);
  costs.link.bytes_per_second = 0;
  EXPECT_THROW(simulate(schedule, costs), InvalidArgument);
  EXPECT_THROW(simulate(schedule, uniform_costs(schedule), {{1}, true}), InvalidArgument);
  EXPECT_THROW(simulate(schedule, uniform_costs(schedule), {{1, 0}, true}), InvalidArgument);
}

TEST(Simulate, RefusesAScheduleThatDeadlocks) {
  const Schedule schedule = parse_text("F0 B0 F1 B1\nF0 F1 B0 B1\n");
  EXPECT_THROW(run(schedule), ScheduleError);
  EXPECT_THROW(simulate(schedules::looped_bfs(2, 8, 2), uniform_costs(schedules::looped_bfs(2, 8, 2)),
                        {std::vector<int>(6, 1), true}),
               ScheduleError);
}

TEST(Simulate, FreeWorkTakesNoTime) {
  const Timeline timeline = run(schedules::gpipe(2, 2), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(timeline.makespan_seconds, 0);
  EXPECT_EQ(timeline.bubble_fraction, 0);
}

}  // namespace
}  // namespace gpipe
