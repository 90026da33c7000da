// The proof: what it refuses, what it says, and what its certificate promises.
#include "gpipe/schedule/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/token_game.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

using detail::Spectator;
using detail::TokenGame;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The ScheduleError of a schedule that must be refused.
ScheduleError refusal(const std::string& text, const ValidateOptions& options = {}) {
  try {
    validate(parse_schedule(text), options);
  } catch (const ScheduleError& error) {
    return error;
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return ScheduleError(Rule::kMemory, "", {});
}

bool is_live(const Schedule& schedule, const Routes& routes, const std::vector<int>& capacities) {
  const FlowTable table = make_flow_table(schedule, routes);
  Spectator<> spectator;
  return TokenGame<Spectator<>>(schedule, table, {capacities, false}, spectator).run();
}

std::vector<int> live_capacities_of(const Certificate& certificate) {
  std::vector<int> capacities;
  for (const FlowCertificate& flow : certificate.flows) capacities.push_back(flow.live_capacity);
  return capacities;
}

int largest_live_capacity(const Schedule& schedule) {
  int largest = 0;
  for (const FlowCertificate& flow : validate(schedule).flows) largest = std::max(largest, flow.live_capacity);
  return largest;
}

TEST(Validate, RefusesAMissingAction) {
  const ScheduleError error = refusal("F0 F1 B0\nF0 F1 B0 B1\n");
  EXPECT_EQ(error.rule(), Rule::kCompleteness);
  EXPECT_THAT(error.actions(), ElementsAre(Action{ActionKind::kBackward, 0, 1}));
  EXPECT_THAT(error.what(), HasSubstr("0B1 is missing on worker 0"));
}

TEST(Validate, RefusesARepeatedAction) {
  EXPECT_EQ(refusal("F0 F0 B0\n").rule(), Rule::kCompleteness);
  EXPECT_THAT(refusal("F0 B0 B0\n").what(), HasSubstr("backward of micro-batch 0 on stage 0 comes after its backward"));
  EXPECT_EQ(refusal("F0 R0 R0 B0\n").rule(), Rule::kCompleteness);
  EXPECT_EQ(refusal("F0 I0 W0 W0\n").rule(), Rule::kCompleteness);
}

TEST(Validate, RefusesActionsOfOneMicroBatchInTheWrongOrder) {
  for (const char* text :
       {"B0 F0", "R0 F0 B0", "F0 B0 R0", "F0 W0 I0", "F0 I0 R0 W0", "F0 B0 I0 W0", "F0 I0 B0", "F0 R0"}) {
    EXPECT_EQ(refusal(text).rule(), Rule::kCompleteness) << text;
  }
}

TEST(Validate, RefusesUpdatesThatAreNotTheLastOfTheirStageOrNotThoseOfAll) {
  EXPECT_NO_THROW(validate(parse_schedule("F0 F1 B0 B1 U\nF0 B0 F1 B1 U\n")));
  EXPECT_THAT(refusal("F0 F1 B0 U B1\nF0 B0 F1 B1 U\n").what(),
              HasSubstr("0B1 comes after the update of its stage, 0U"));
  EXPECT_THAT(refusal("F0 B0 U U\n").what(), HasSubstr("0U comes after the update of its stage"));
  const ScheduleError error = refusal("F0 B0\nF0 B0 U\n");
  EXPECT_EQ(error.rule(), Rule::kCompleteness);
  EXPECT_THAT(error.what(), HasSubstr("0U is missing on worker 0: other stages are updated"));
  EXPECT_THAT(refusal("F0 U\n").what(), HasSubstr("0B0 is missing on worker 0"));
}

// Stage 0 owns a weight that stage 3, on its own worker, uses, too: an update in front of stage 3's last backward would
// wait for what comes behind it.
TEST(Validate, AnUpdateWaitsForTheGradientsOfTheWeightsThatItsStageOwns) {
  ValidateOptions options;
  options.routes.ties = {{1, 0}};
  const std::string rest = "1F0 2F0 2B0 1B0 ";
  EXPECT_NO_THROW(validate(parse_schedule("0F0 3F0 3B0 0B0 0U 3U\n" + rest + "1U 2U\n"), options));
  options.routes.ties = {{3, 0}};
  EXPECT_NO_THROW(validate(parse_schedule("0F0 3F0 3B0 0B0 3U 0U\n" + rest + "1U 2U\n"), options));
  EXPECT_THAT(refusal("0F0 3F0 3B0 3U 0B0 0U\n" + rest + "1U 2U\n", options).what(),
              HasSubstr("3U waits for tie 0 -> 3"));
}

TEST(Validate, RefusesAStageOnTwoWorkers) {
  const ScheduleError error = refusal("0F0 0B0 1F0\n1B0\n");
  EXPECT_EQ(error.rule(), Rule::kPlacement);
  EXPECT_THAT(error.what(), HasSubstr("1B0 is on worker 1, but stage 1 lives on worker 0"));
}

TEST(Validate, RefusesAWorkerWithoutActions) { EXPECT_EQ(refusal("0F0,0B0\n,,\n").rule(), Rule::kPlacement); }

TEST(Validate, RefusesAStageThatIsSkipped) {
  EXPECT_THROW(validate(parse_schedule("0F0 0B0\n2F0 2B0\n")), ScheduleError);
}

TEST(Validate, RefusesMessagesOutOfOrder) {
  const ScheduleError error = refusal("F0 F1 B0 B1\nF1 F0 B0 B1\n");
  EXPECT_EQ(error.rule(), Rule::kChannelOrder);
  EXPECT_THAT(error.what(), HasSubstr("message 0 of activation 0 -> 1 is sent by 0F0 but would be received by 1F1"));
  EXPECT_EQ(refusal("F0 F1 B0 B1\nF0 F1 B1 B0\n").rule(), Rule::kChannelOrder);
}

TEST(Validate, PrintsTheWholeCycleOfADeadlockOneEdgeALine) {
  const ScheduleError error = refusal("F0 B0 F1 B1\nF0 F1 B0 B1\n");
  EXPECT_EQ(error.rule(), Rule::kDeadlock);
  EXPECT_THAT(error.cycle(),
              ElementsAre("worker 0: 0B0 waits for gradient 1 -> 0, from 1B0", "worker 1: 1B0 comes after 1F1",
                          "worker 1: 1F1 waits for activation 0 -> 1, from 0F1", "worker 0: 0F1 comes after 0B0"));
  for (const std::string& edge : error.cycle()) EXPECT_THAT(error.what(), HasSubstr("\n  " + edge));
}

TEST(Validate, FindsADeadlockInsideOneWorker) {
  const ScheduleError error = refusal("0F0 0B0 1F0 1B0\n");
  EXPECT_EQ(error.rule(), Rule::kDeadlock);
  EXPECT_THAT(error.cycle(),
              ElementsAre("worker 0: 0B0 waits for gradient 1 -> 0, from 1B0", "worker 0: 1B0 comes after 0B0"));
}

TEST(Validate, FindsACycleAmongSomeOfTheWorkersOnly) {
  const ScheduleError error = refusal("F0 F1 B0 B1\nF0 B0 F1 B1\nF0 F1 B0 B1\n");
  EXPECT_EQ(error.rule(), Rule::kDeadlock);
  for (const std::string& edge : error.cycle()) EXPECT_EQ(edge.find("worker 0"), std::string::npos) << edge;
}

TEST(Validate, RefusesClaimsOfManyMicroBatchesInLinearMemory) {
  // A million actions on one stage claim a million micro-batches for a second stage that has one.
  std::vector<std::vector<Action>> workers(2);
  for (int m = 0; m < 1000000; ++m) workers[0].push_back({ActionKind::kForward, 0, m});
  workers[1].push_back({ActionKind::kForward, 1, 0});
  try {
    validate(schedule_from_actions(workers));
    FAIL() << "accepted";
  } catch (const ScheduleError& error) {
    EXPECT_EQ(error.rule(), Rule::kCompleteness);
    EXPECT_THAT(error.what(), HasSubstr("1F1 is missing"));
  }
}

TEST(Validate, RefusesValuesThatContradictThemselves) {
  EXPECT_THROW(validate(Schedule{}), ScheduleError);
  Schedule schedule = schedules::gpipe(2, 2);
  schedule.worker_of_stage = {0};
  EXPECT_THROW(validate(schedule), ScheduleError);
  schedule = schedules::gpipe(2, 2);
  schedule.worker_of_stage = {1, 0};
  EXPECT_THROW(validate(schedule), ScheduleError);
  schedule = schedules::gpipe(2, 2);
  schedule.num_micro_batches = 1;
  EXPECT_THROW(validate(schedule), ScheduleError);
  schedule = schedules::gpipe(2, 2);
  schedule.num_micro_batches = 2000000000;
  EXPECT_THROW(validate(schedule), ScheduleError);
  schedule = schedules::gpipe(2, 2);
  schedule.workers[0][0].micro_batch = -1;
  EXPECT_THROW(validate(schedule), ScheduleError);
}

TEST(Validate, MarksDescendingAccumulationAsNotCanonical) {
  const Certificate certificate = validate(schedules::gpipe(2, 3, schedules::BackwardOrder::kDescending));
  EXPECT_FALSE(certificate.canonical);
  EXPECT_EQ(certificate.non_canonical_because, "stage 0 accumulates 0B2 before 0B1");
  EXPECT_TRUE(validate(schedules::gpipe(2, 3)).canonical);
}

TEST(Validate, JudgesASplitBackwardByItsWeightGradients) {
  EXPECT_FALSE(validate(parse_text("F0 F1 I0 I1 W1 W0")).canonical);
  EXPECT_TRUE(validate(parse_text("F0 F1 I1 I0 W0 W1")).canonical);
}

TEST(Validate, AcceptsForwardOnly) {
  const Certificate certificate = validate(schedules::forward_only(3, 4));
  EXPECT_TRUE(certificate.forward_only);
  EXPECT_EQ(certificate.flows.size(), 2u);
}

TEST(Validate, HoldsThePeakOfEveryWorkerAgainstTheLimit) {
  ValidateOptions options;
  options.stages.assign(4, StageBytes{1000, 100, 10});
  options.memory_limit_bytes.assign(4, 1410);
  EXPECT_EQ(validate(schedules::one_f_one_b(4, 8), options).peak_bytes,
            (std::vector<std::int64_t>{1410, 1310, 1210, 1110}));
  options.memory_limit_bytes.assign(4, 1409);
  const ScheduleError error = refusal(to_text(schedules::one_f_one_b(4, 8)), options);
  EXPECT_EQ(error.rule(), Rule::kMemory);
  EXPECT_THAT(error.what(), HasSubstr("worker 0 holds 1410 bytes at its peak, 1 more than its limit of 1409"));
  EXPECT_NO_THROW(validate(with_recompute(schedules::one_f_one_b(4, 8), Recompute::kAlways), options));
}

TEST(Validate, HoldsThePeakOfEachWorkerAgainstItsOwnLimit) {
  ValidateOptions options;
  options.stages.assign(4, StageBytes{1000, 100, 10});
  options.memory_limit_bytes = {1410, 1310, 1210, 1110};
  EXPECT_NO_THROW(validate(schedules::one_f_one_b(4, 8), options));
  options.memory_limit_bytes = {1409, 1310, 1207, 1110};  // the third worker lacks most
  EXPECT_THAT(refusal(to_text(schedules::one_f_one_b(4, 8)), options).what(),
              HasSubstr("worker 2 holds 1210 bytes at its peak, 3 more than its limit of 1207"));
  options.memory_limit_bytes = {2000, 2000};
  EXPECT_THROW(validate(schedules::one_f_one_b(4, 8), options), InvalidArgument);
}

TEST(Validate, AnswersBytesForAnotherNumberOfStages) {
  ValidateOptions options;
  options.stages.assign(3, StageBytes{});
  EXPECT_THROW(validate(schedules::gpipe(2, 2), options), InvalidArgument);
}

TEST(Validate, CapacityOneIsLiveForTheUsualSchedules) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    EXPECT_EQ(largest_live_capacity(make_schedule(name, 8, 16)), 1) << name;
  }
}

TEST(Validate, CapacitiesAboveOneAreComputed) {
  // Worker 0 sends both activations of its chunk before it takes anything back.
  EXPECT_GT(largest_live_capacity(schedules::looped_bfs(2, 8, 2)), 1);
}

TEST(Validate, LiveCapacitiesAreLiveAndNoneCanBeLowered) {
  int num_lowered = 0;
  for (int k = 2; k <= 5; ++k) {
    test::for_each_schedule(k, 9, 3, [&](const Schedule& schedule, const std::string& description) {
      const std::vector<int> capacities = live_capacities_of(validate(schedule));
      EXPECT_TRUE(is_live(schedule, {}, capacities)) << description;
      const FlowTable table = make_flow_table(schedule);
      int uniform = 1;
      for (std::size_t flow = 0; flow < capacities.size(); ++flow) {
        if (table.is_local(static_cast<int>(flow)) || capacities[flow] == 1) continue;
        uniform = std::max(uniform, capacities[flow]);
        std::vector<int> lowered = capacities;
        --lowered[flow];
        ++num_lowered;
        EXPECT_FALSE(is_live(schedule, {}, lowered)) << description << " " << to_string(table.flows[flow]);
      }
      // The largest is the least uniform capacity; flows inside a worker are never limited, so theirs do not count.
      if (uniform == 1) return;
      EXPECT_FALSE(is_live(schedule, {}, std::vector<int>(capacities.size(), uniform - 1))) << description;
    });
  }
  EXPECT_GT(num_lowered, 0);
}

TEST(Validate, FreeCapacityIsWhatASenderCanBeAheadOfASlowReceiver) {
  const Certificate certificate = validate(schedules::one_f_one_b(4, 8));
  for (const FlowCertificate& flow : certificate.flows) {
    if (flow.flow.kind != FlowKind::kActivation) continue;
    EXPECT_EQ(flow.free_capacity, 4 - flow.flow.source) << to_string(flow.flow);
  }
  for (const FlowCertificate& flow : validate(schedules::gpipe(4, 8)).flows) EXPECT_EQ(flow.free_capacity, 8);
}

TEST(Validate, SaysWhetherWeakerTransportsWouldDo) {
  EXPECT_TRUE(validate(schedules::gpipe(4, 8)).rendezvous.survives);
  const Certificate certificate = validate(schedules::one_f_one_b(2, 4));
  EXPECT_FALSE(certificate.rendezvous.survives);
  EXPECT_THAT(certificate.rendezvous.counter_example,
              ElementsAre("worker 0: 0F1 waits for 1F1 to receive activation 0 -> 1", "worker 1: 1F1 comes after 1B0",
                          "worker 1: 1B0 waits for 0B0 to receive gradient 1 -> 0", "worker 0: 0B0 comes after 0F1"));
  EXPECT_TRUE(certificate.one_channel_per_pair.survives);
  const Survival shared = validate(schedules::zb_v(4, 8)).one_channel_per_pair;
  EXPECT_FALSE(shared.survives);
  EXPECT_EQ(shared.counter_example.size(), 2u);
}

TEST(Validate, SkipFlowsArePartOfTheProof) {
  ValidateOptions options;
  options.routes.skips = {{0, 2}, {0, 2}, {1, 1}};
  const Certificate certificate = validate(schedules::one_f_one_b(3, 6), options);
  ASSERT_EQ(certificate.flows.size(), 6u);
  EXPECT_EQ(to_string(certificate.flows[4].flow), "skip 0 -> 2");
  EXPECT_EQ(to_string(certificate.flows[5].flow), "skip gradient 2 -> 0");
  EXPECT_EQ(certificate.flows[4].free_capacity, 3);
}

TEST(Validate, ASkipThatGoesBackwardIsRefused) {
  ValidateOptions options;
  options.routes.skips = {{2, 0}};
  EXPECT_THROW(validate(schedules::gpipe(3, 2), options), InvalidArgument);
  options.routes.skips = {{0, 3}};
  EXPECT_THROW(validate(schedules::gpipe(3, 2), options), InvalidArgument);
}

TEST(Validate, TieFlowsTravelOnceAStep) {
  ValidateOptions options;
  options.routes.ties = {{0, 3}};
  const Certificate certificate = validate(schedules::gpipe(4, 8), options);
  const FlowCertificate& tie = certificate.flows.back();
  EXPECT_EQ(to_string(tie.flow), "tie 3 -> 0");
  EXPECT_EQ(tie.live_capacity, 1);
  EXPECT_EQ(tie.free_capacity, 1);
}

TEST(Validate, ATieCanMakeARendezvousImpossible) {
  // Worker 1 would hand the tied gradient over after 2B0; worker 0 takes it at its end, for which it needs 1B0.
  const Schedule schedule = parse_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0\n");
  ValidateOptions options;
  options.routes.ties = {{0, 2}};
  EXPECT_TRUE(validate(schedule).rendezvous.survives);
  const Survival survival = validate(schedule, options).rendezvous;
  EXPECT_FALSE(survival.survives);
  EXPECT_THAT(survival.counter_example, Contains("worker 1: 2B0 waits for the end of the step to receive tie 2 -> 0"));
}

}  // namespace
}  // namespace gpipe
