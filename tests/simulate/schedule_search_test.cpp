#include "gpipe/simulate/schedule_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/plan/plan_json.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/list_scheduler.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe {
namespace {

using detail::CostTable;
using detail::list_schedule;
using detail::ListPolicy;
using detail::make_cost_table;

LayerProfile searched_layer(double forward_seconds) {
  LayerProfile layer;
  layer.name = "layer";
  layer.forward_seconds = forward_seconds;
  layer.backward_seconds = 2 * forward_seconds;
  layer.input_grad_seconds = 1.05 * forward_seconds;
  layer.weight_grad_seconds = forward_seconds;
  layer.parameter_bytes = 10;
  layer.activation_bytes = 100;
  layer.output_bytes = 20;
  layer.kept_output_bytes = 20;
  return layer;
}

// Layers of different sizes, with a large one at the end.
Profile uneven_profile(int num_layers) {
  Profile profile;
  for (int layer = 0; layer < num_layers; ++layer) {
    profile.layers.push_back(searched_layer(1 + layer * 7 % 5 * 0.25));
  }
  profile.layers.back() = searched_layer(4);
  return profile;
}

PlanOptions search_options(int num_workers, int num_micro_batches) {
  PlanOptions options;
  options.num_stages = num_workers;
  options.num_micro_batches = num_micro_batches;
  options.search_seconds = 0.2;
  return options;
}

double best_named_seconds(const Profile& profile, PlanOptions options) {
  double best = std::numeric_limits<double>::infinity();
  for (const ScheduleInfo& info : schedule_registry()) {
    options.schedule = info.name;
    options.chunks = info.default_chunks;
    if (!info.generate(1, 1, info.default_chunks).has_backward()) continue;
    best = std::min(best, plan(profile, options).predicted_step_seconds);
  }
  return best;
}

TEST(ScheduleSearchTest, OfOneWorkerIsNotSlowerThanANamedSchedule) {
  Profile profile = uneven_profile(8);
  for (LayerProfile& layer : profile.layers) {
    layer.input_grad_seconds = 0.7 * layer.forward_seconds;
    layer.weight_grad_seconds = 0.8 * layer.forward_seconds;
  }
  const PlanOptions options = search_options(1, 4);
  EXPECT_LE(search_schedules(profile, options).best.predicted_step_seconds,
            best_named_seconds(profile, options) * (1 + 1e-12));
}

TEST(ScheduleSearchTest, IsFasterThanAnyNamedScheduleAndNotBelowItsBounds) {
  const Profile profile = uneven_profile(24);
  for (const int num_workers : {2, 4}) {
    SCOPED_TRACE(num_workers);
    const PlanOptions options = search_options(num_workers, 8);
    const ScheduleSearch search = search_schedules(profile, options);
    const double step = search.best.predicted_step_seconds;
    EXPECT_LT(step, best_named_seconds(profile, options));
    EXPECT_EQ(search.named.front().step_seconds, best_named_seconds(profile, options));
    EXPECT_GE(step, search.of_cut.seconds());
    EXPECT_GE(search.of_cut.seconds(), search.of_any_cut.seconds());
    EXPECT_LT(search.gap(), 0.12);
    EXPECT_NEAR(step, simulate(schedule_of(search.best), search.best.costs).makespan_seconds, 1e-9);
  }
}

TEST(ScheduleSearchTest, TheResultIsProvenAndCanonical) {
  const ScheduleSearch search = search_schedules(uneven_profile(17), search_options(3, 7));
  ASSERT_TRUE(search.best.order.has_value());
  const Certificate certificate = validate(*search.best.order);
  EXPECT_TRUE(certificate.canonical) << certificate.non_canonical_because;
  EXPECT_EQ(search.best.order->num_micro_batches, 7);
  EXPECT_EQ(search.best.order->num_workers(), 3);
}

TEST(ScheduleSearchTest, DependsOnTheSeedAndOnNothingElse) {
  const Profile profile = uneven_profile(20);
  PlanOptions options = search_options(4, 6);
  const Plan first = search_schedules(profile, options).best;
  const Plan second = search_schedules(profile, options).best;
  EXPECT_EQ(*first.order, *second.order);
  EXPECT_EQ(first.layers_per_stage, second.layers_per_stage);
  options.search_seed = 1;
  EXPECT_NE(*search_schedules(profile, options).best.order, *first.order);
}

TEST(ScheduleSearchTest, StaysWithinTheMemoryOfEachWorker) {
  const Profile profile = uneven_profile(16);
  PlanOptions options = search_options(4, 8);
  const Plan unlimited = search_schedules(profile, options).best;
  const std::vector<std::int64_t>& most = unlimited.predicted_peak_bytes;
  options.memory_limit_bytes = *std::max_element(most.begin(), most.end()) / 2;
  options.workers.resize(4);
  options.workers[1].memory_limit_bytes = *options.memory_limit_bytes * 3 / 4;
  options.recompute = Recompute::kAuto;
  const Plan limited = search_schedules(profile, options).best;
  const Schedule schedule = schedule_of(limited);
  const std::vector<std::int64_t> peak = peak_bytes_by_worker(schedule, stage_bytes(limited.costs));
  for (int worker = 0; worker < 4; ++worker) EXPECT_LE(peak[worker], options.memory_limit_of(worker)) << worker;
  options.memory_limit_bytes = 100;
  EXPECT_THROW(search_schedules(profile, options), InfeasibleError);
}

// Also where the fastest stages drop some of their layers.
TEST(ScheduleSearchTest, NoResultIsAboveTheLimitOrSlowerThanAnyNamed) {
  std::mt19937 random(3);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  int num_found = 0;
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(round);
    Profile profile;
    for (int layer = 4 + below(9); layer > 0; --layer) {
      LayerProfile one = searched_layer(1 + below(8) * 0.5);
      one.activation_bytes = 1000 * (1 + below(20));
      one.kept_output_bytes = one.output_bytes = 100 * (1 + below(9));
      profile.layers.push_back(one);
    }
    PlanOptions options = search_options(1 + below(3), 1 + below(8));
    options.search_seconds = 0.05;
    options.recompute = Recompute::kAuto;
    const std::vector<std::int64_t> most = search_schedules(profile, options).best.predicted_peak_bytes;
    options.memory_limit_bytes = *std::max_element(most.begin(), most.end()) * (40 + below(50)) / 100;
    try {
      const ScheduleSearch search = search_schedules(profile, options);
      const Schedule schedule = schedule_of(search.best);
      const std::vector<std::int64_t> peak = peak_bytes_by_worker(schedule, stage_bytes(search.best.costs));
      EXPECT_EQ(search.best.predicted_peak_bytes, peak);
      EXPECT_LE(*std::max_element(peak.begin(), peak.end()), *options.memory_limit_bytes);
      EXPECT_LE(search.best.predicted_step_seconds, search.named.front().step_seconds * (1 + 1e-9));
      EXPECT_NEAR(simulate(schedule, search.best.costs).makespan_seconds, search.best.predicted_step_seconds, 1e-9);
      ++num_found;
    } catch (const InfeasibleError&) {  // NOLINT(bugprone-empty-catch) then there is nothing to compare
    }
  }
  EXPECT_GT(num_found, 10);
}

// With one worker there is nothing to gain, and several stages would only cost.
TEST(ScheduleSearchTest, OneWorkerHasOneStage) {
  EXPECT_EQ(search_schedules(uneven_profile(12), search_options(1, 4)).best.layers_per_stage, std::vector<int>{12});
}

TEST(ScheduleSearchTest, GivesASlowWorkerLess) {
  const Profile profile = uneven_profile(20);
  PlanOptions options = search_options(2, 8);
  options.workers = workers_of_speed({1, 0.25});
  const ScheduleSearch search = search_schedules(profile, options);
  EXPECT_LE(search.best.predicted_step_seconds, best_named_seconds(profile, options));
  EXPECT_GE(search.best.predicted_step_seconds, search.of_any_cut.seconds());
  const Schedule& order = *search.best.order;
  std::vector<int> num_layers(2);
  for (int stage = 0; stage < order.num_stages; ++stage) {
    num_layers[order.worker_of_stage[stage]] += search.best.layers_per_stage[stage];
  }
  EXPECT_GT(num_layers[0], 2 * num_layers[1]);
}

TEST(ScheduleSearchTest, LeavesTheEndsWhereTheyAreIfAsked) {
  PlanOptions options = search_options(4, 4);
  options.search_keeps_ends = true;
  const Schedule order = *search_schedules(uneven_profile(20), options).best.order;
  EXPECT_EQ(order.worker_of_stage.front(), 0);
  EXPECT_EQ(order.worker_of_stage.back(), 3);
}

TEST(ScheduleSearchTest, IsAScheduleOfThePlanner) {
  const Profile profile = uneven_profile(12);
  PlanOptions options = search_options(2, 4);
  options.schedule = kSearchedSchedule;
  const PlanSearch search = search_plans(profile, options);
  EXPECT_EQ(search.best.schedule, kSearchedSchedule);
  EXPECT_EQ(search.candidates.front().step_seconds, search.best.predicted_step_seconds);
  EXPECT_GE(search.candidates.size(), 8U);
}

TEST(ScheduleSearchTest, ItsPlanComesBackFromAFile) {
  const Plan plan = search_schedules(uneven_profile(12), search_options(2, 4)).best;
  const Plan again = parse_plan(to_json(plan));
  EXPECT_EQ(*again.order, *plan.order);
  EXPECT_EQ(again.order->name, kSearchedSchedule);
  EXPECT_EQ(again.layers_per_stage, plan.layers_per_stage);
  EXPECT_EQ(to_json(again), to_json(plan));
  std::string broken = to_json(plan);
  broken.replace(broken.find("F0"), 2, "F3");
  EXPECT_THROW(parse_plan(broken), ParseError);
}

TEST(ScheduleSearchTest, RefusesWhatItCannotChoose) {
  const Profile profile = uneven_profile(8);
  PlanOptions options = search_options(2, 0);
  EXPECT_THROW(search_schedules(profile, options), InvalidArgument);
  options = search_options(2, 4);
  options.chunks = 2;
  EXPECT_THROW(search_schedules(profile, options), InvalidArgument);
  options = search_options(2, 4);
  options.recompute_by_stage = {Recompute::kNever, Recompute::kAlways};
  EXPECT_THROW(search_schedules(profile, options), InvalidArgument);
  EXPECT_THROW(search_schedules(profile, search_options(4, 1'000'000)), InvalidArgument);
  options = search_options(2, 4);
  options.search_seconds = 0;
  EXPECT_THROW(search_schedules(profile, options), InvalidArgument);
  EXPECT_THROW(search_schedules(profile, search_options(9, 4)), InvalidArgument);  // more workers than layers
}

// Whatever the costs and the policy, a list schedule can be proven.
TEST(ListSchedulerTest, MakesCanonicalSchedulesForAnyCosts) {
  std::mt19937 random(5);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const int num_workers = 1 + below(5);
    const int num_micro_batches = 1 + below(9);
    Schedule placement = make_schedule(below(2) == 0 ? "zb-v" : "interleaved", num_workers, num_micro_batches);
    Costs costs = uniform_costs(placement);
    for (StageCosts& stage : costs.stages) {
      for (double* seconds : {&stage.forward_seconds, &stage.backward_seconds, &stage.input_grad_seconds,
                              &stage.weight_grad_seconds, &stage.recompute_seconds}) {
        *seconds = below(8) * 0.25;
      }
    }
    costs.link.latency_seconds = below(3) * 0.5;
    const FlowTable table = make_flow_table(placement, {});
    const CostTable cost_table = make_cost_table(placement, table, costs);
    ListPolicy policy;
    policy.kind = static_cast<ListPolicy::Kind>(below(3));
    policy.stage = static_cast<ListPolicy::Stage>(below(3));
    policy.patience = below(3) * 0.5;
    policy.splits_backward = below(3) > 0;
    for (int worker = 0; worker < num_workers; ++worker) policy.max_live.push_back(1 + below(2 * num_workers));
    std::vector<bool> recomputes;
    for (int stage = 0; stage < placement.num_stages; ++stage) recomputes.push_back(below(2) == 0);
    const Schedule listed = list_schedule(placement, table, cost_table, recomputes, policy);
    EXPECT_EQ(listed.num_actions(),
              std::int64_t{policy.splits_backward ? 3 : 2} * placement.num_stages * num_micro_batches);
    EXPECT_TRUE(validate(listed).canonical);
  }
}

// With equal stages, taking backwards first at 1F1B's memory is 1F1B.
TEST(ListSchedulerTest, BackwardsFirstAtTheMemoryOfOneFOneBIsOneFOneB) {
  const Schedule expected = make_schedule("1f1b", 4, 8);
  const FlowTable table = make_flow_table(expected, {});
  ListPolicy policy;
  policy.splits_backward = false;
  policy.max_live = {4, 3, 2, 1};
  EXPECT_EQ(list_schedule(expected, table, make_cost_table(expected, table, uniform_costs(expected)),
                          std::vector<bool>(4, false), policy),
            expected);
}

TEST(FirstMicroBatchesTest, LeavesOutTheOthers) {
  for (const char* name : {"1f1b", "zb-v", "interleaved", "dualpipe-v"}) {
    const Schedule few = first_micro_batches(make_schedule(name, 3, 7), 4);
    EXPECT_EQ(few.num_micro_batches, 4);
    EXPECT_TRUE(validate(few).canonical) << name;
  }
}

}  // namespace
}  // namespace gpipe
