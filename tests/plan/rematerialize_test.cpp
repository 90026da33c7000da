// The best rematerialization against brute force, and against what others do.
#include "gpipe/plan/rematerialize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>

#include "gpipe/error.h"
#include "gpipe/plan/rematerializer.h"

namespace gpipe {
namespace {

using detail::Rematerializer;
using ::testing::HasSubstr;
using Chain = std::vector<RematerializationCosts>;
using Runs = std::vector<RematerializedRun>;

int draw(std::mt19937& random, int from, int to) {
  return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
}

// Whole seconds, so that sums are exact in any order.
Chain random_chain(int num_layers, int max_bytes, std::mt19937& random) {
  Chain chain;
  const bool has_gradients = random() % 2 == 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    RematerializationCosts costs;
    costs.forward_seconds = draw(random, 0, 9);
    costs.backward_seconds = draw(random, 0, 9);
    costs.activation_bytes = draw(random, 0, max_bytes);
    costs.output_bytes = draw(random, 0, max_bytes / 2);
    costs.working_bytes = costs.activation_bytes + draw(random, 0, max_bytes / 2);
    if (has_gradients) costs.output_grad_bytes = draw(random, 0, max_bytes / 2);
    chain.push_back(costs);
  }
  return chain;
}

// All ways to drop layers of [begin, end): what comes first, then the rest.
std::vector<Runs> all_runs(int begin, int end, bool may_drop_all) {
  static std::map<std::tuple<int, int, bool>, std::vector<Runs>> known;
  if (begin == end) return {{}};
  std::vector<Runs>& ways = known[{begin, end, may_drop_all}];
  if (!ways.empty()) return ways;
  std::vector<Runs> found = all_runs(begin + 1, end, true);  // the first layer is kept
  for (int run_end = begin + 1; run_end <= end - (may_drop_all ? 0 : 1); ++run_end) {
    const std::vector<Runs> rests = all_runs(run_end, end, true);
    for (const Runs& nested : all_runs(begin, run_end, false)) {
      for (const Runs& rest : rests) {
        Runs runs = {{begin, run_end, nested}};
        runs.insert(runs.end(), rest.begin(), rest.end());
        found.push_back(runs);
      }
    }
  }
  return ways = found;
}

// Peak bytes -> the least seconds of any rematerialization that peaks there or lower.
std::map<std::int64_t, double> brute_force(const Chain& chain) {
  std::map<std::int64_t, double> least;
  for (const Runs& runs : all_runs(0, static_cast<int>(chain.size()), true)) {
    const RematerializationOutcome outcome = evaluate(chain, runs);
    const auto [place, is_new] = least.emplace(outcome.peak_bytes, outcome.seconds);
    if (!is_new) place->second = std::min(place->second, outcome.seconds);
  }
  double best = std::numeric_limits<double>::infinity();
  for (auto& [bytes, seconds] : least) seconds = best = std::min(best, seconds);
  return least;
}

TEST(RematerializeBruteForce, AllWaysAreCounted) {
  EXPECT_EQ(all_runs(0, 1, true).size(), 2U);  // kept, 0-0
  EXPECT_EQ(all_runs(0, 2, true).size(), 8U);  // two layers by themselves; 0-1 with nothing, 0-0, 1-1 or 0-0,1-1 nested
  EXPECT_EQ(all_runs(0, 6, true).size(), 25216U);
}

TEST(RematerializeBruteForce, NoRematerializationIsFasterWithinTheSameBytes) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 120; ++trial) {
    const Chain chain = random_chain(1 + trial % 6, trial % 2 == 0 ? 6 : 40, random);
    const std::map<std::int64_t, double> least = brute_force(chain);
    const Rematerializer rematerializer(chain);
    EXPECT_EQ(rematerializer.least_bytes(), least.begin()->first);
    for (std::int64_t bytes = least.begin()->first; bytes <= least.rbegin()->first + 1; ++bytes) {
      const RematerializationPlan plan = rematerializer.plan(bytes);
      ASSERT_EQ(plan.outcome.seconds, std::prev(least.upper_bound(bytes))->second)
          << "trial " << trial << ", " << bytes << " bytes: " << to_text(plan.rematerialization);
      ASSERT_LE(plan.outcome.peak_bytes, bytes);
      ASSERT_TRUE(plan.is_exact);
    }
  }
}

// What a stage peaks at that holds so many micro-batches.
std::int64_t held_bytes(const RematerializationOutcome& outcome, int num_held) {
  return (num_held - 1) * outcome.kept_bytes + outcome.peak_bytes;
}

TEST(RematerializeBruteForce, NoRematerializationIsFasterForSeveralMicroBatchesHeld) {
  std::mt19937 random(15);
  for (int trial = 0; trial < 40; ++trial) {
    const Chain chain = random_chain(1 + trial % 5, 6, random);
    const int num_held = 2 + trial % 3;
    const Rematerializer rematerializer(chain);
    std::map<std::int64_t, double> least;
    for (const Runs& runs : all_runs(0, static_cast<int>(chain.size()), true)) {
      const RematerializationOutcome outcome = evaluate(chain, runs);
      const auto [place, is_new] = least.emplace(held_bytes(outcome, num_held), outcome.seconds);
      if (!is_new) place->second = std::min(place->second, outcome.seconds);
    }
    double best = std::numeric_limits<double>::infinity();
    for (auto& [bytes, seconds] : least) seconds = best = std::min(best, seconds);
    ASSERT_EQ(rematerializer.least_bytes(num_held), least.begin()->first);
    for (std::int64_t bytes = least.begin()->first; bytes <= least.rbegin()->first; ++bytes) {
      const RematerializationPlan plan = rematerializer.plan(bytes, num_held);
      ASSERT_TRUE(plan.is_exact);
      ASSERT_LE(held_bytes(plan.outcome, num_held), bytes);
      ASSERT_EQ(plan.outcome.seconds, std::prev(least.upper_bound(bytes))->second)
          << "trial " << trial << ", " << bytes << " bytes: " << to_text(plan.rematerialization);
    }
  }
}

TEST(Rematerialize, SeveralMicroBatchesHeldFitTogether) {
  std::mt19937 random(16);
  for (const int num_layers : {3, 12, 30, 100}) {
    const Chain chain = random_chain(num_layers, 1'000'000, random);
    const Rematerializer rematerializer(chain);
    const std::int64_t least = rematerializer.least_bytes(4);
    const std::int64_t most = held_bytes(evaluate(chain, {}), 4);
    EXPECT_THROW(rematerializer.plan(least - 1, 4), InfeasibleError);
    for (const std::int64_t bytes : {least, least + (most - least) / 5, most - 1}) {
      const RematerializationPlan plan = rematerializer.plan(bytes, 4);
      EXPECT_LE(held_bytes(plan.outcome, 4), bytes) << num_layers << " layers";
      EXPECT_NE(to_text(plan.rematerialization), "");
    }
    EXPECT_EQ(to_text(rematerializer.plan(most, 4).rematerialization), "");
  }
  EXPECT_THROW(rematerialize({{1, 1, 1, 1, 1}}, 1, 0), InvalidArgument);
}

TEST(Rematerialize, SaysWhatTheEvaluatorSays) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 50; ++trial) {
    const Chain chain = random_chain(12, 1000, random);
    const RematerializationPlan plan = rematerialize(chain, Rematerializer(chain).least_bytes() + 500);
    const RematerializationOutcome outcome = evaluate(chain, plan.rematerialization);
    EXPECT_EQ(plan.outcome.seconds, outcome.seconds);
    EXPECT_EQ(plan.outcome.peak_bytes, outcome.peak_bytes);
    EXPECT_EQ(plan.outcome.kept_bytes, outcome.kept_bytes);
  }
}

// `num_segments` runs of equal numbers of layers.
Rematerialization segments(int num_layers, int num_segments) {
  Rematerialization runs;
  for (int segment = 0; segment < num_segments; ++segment) {
    runs.push_back({num_layers * segment / num_segments, num_layers * (segment + 1) / num_segments});
  }
  return runs;
}

TEST(Rematerialize, IsNeverSlowerThanAlwaysOrSegmentsInTheSameBytes) {
  std::mt19937 random(7);
  int num_faster = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int num_layers = draw(random, 2, 30);
    const Chain chain = random_chain(num_layers, trial % 3 == 0 ? 1'000'000 : 20, random);
    const Rematerializer rematerializer(chain);
    for (const int num_segments : {1, static_cast<int>(std::sqrt(num_layers)), num_layers}) {
      for (const bool keeps_last : {false, true}) {
        Rematerialization runs = segments(num_layers, num_segments);
        if (keeps_last) runs.pop_back();
        const RematerializationOutcome outcome = evaluate(chain, runs);
        const RematerializationPlan plan = rematerializer.plan(outcome.peak_bytes);
        ASSERT_LE(plan.outcome.seconds, outcome.seconds) << "trial " << trial << ", " << num_segments << " segments";
        ASSERT_LE(plan.outcome.peak_bytes, outcome.peak_bytes);
        num_faster += plan.outcome.seconds < outcome.seconds ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_faster, 100);
}

TEST(Rematerialize, DropsNothingIfEverythingFits) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 50; ++trial) {
    const Chain chain = random_chain(draw(random, 1, 20), 50, random);
    const RematerializationOutcome everything = evaluate(chain, {});
    EXPECT_EQ(to_text(rematerialize(chain, everything.peak_bytes).rematerialization), "");
  }
  const Chain chain(4, RematerializationCosts{1, 2, 10, 3, 12, 3});
  EXPECT_NE(to_text(rematerialize(chain, evaluate(chain, {}).peak_bytes - 1).rematerialization), "");
}

TEST(Rematerialize, NamesTheLeastBytesThatWouldDo) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 50; ++trial) {
    Chain chain = random_chain(draw(random, 1, 20), 50, random);
    chain[0].working_bytes += 1;  // so that the least is above zero
    const std::int64_t least = Rematerializer(chain).least_bytes();
    try {
      rematerialize(chain, least - 1);
      FAIL() << "not refused";
    } catch (const InfeasibleError& error) {
      EXPECT_EQ(error.missing_bytes(), 1);
      EXPECT_THAT(error.what(), HasSubstr("the least that would do is " + std::to_string(least) + " bytes"));
    }
    EXPECT_EQ(rematerialize(chain, least).outcome.peak_bytes, least);
  }
  EXPECT_THROW(rematerialize({{1, 1, 0, 0, 0}}, -1), InvalidArgument);
  EXPECT_THROW(rematerialize({}, 1), InvalidArgument);
}

TEST(Rematerialize, MoreBytesAreNeverSlower) {
  std::mt19937 random(10);
  for (const int num_layers : {7, 40, 150}) {
    const Chain chain = random_chain(num_layers, 1'000'000'000, random);
    const Rematerializer rematerializer(chain);
    const std::int64_t least = rematerializer.least_bytes();
    const std::int64_t most = evaluate(chain, {}).peak_bytes;
    double before = std::numeric_limits<double>::infinity();
    for (int step = 0; step <= 300; ++step) {
      const std::int64_t bytes = least + (most - least) * step / 300;
      const RematerializationPlan plan = rematerializer.plan(bytes);
      ASSERT_LE(plan.outcome.peak_bytes, bytes);
      ASSERT_LE(plan.outcome.seconds, before) << num_layers << " layers, step " << step;
      before = plan.outcome.seconds;
    }
    EXPECT_EQ(before, evaluate(chain, {}).seconds);
  }
}

// One long layer between short ones: it is the one to keep.
TEST(Rematerialize, KeepsWhatIsSlowToRunAgain) {
  Chain chain(5, RematerializationCosts{1, 2, 10, 1, 10, 1});
  chain[2].forward_seconds = 100;
  const RematerializationPlan plan = rematerialize(chain, 35);
  EXPECT_EQ(plan.outcome.recompute_seconds, 2);
  for (const RematerializedRun& run : plan.rematerialization) EXPECT_TRUE(run.end <= 2 || run.begin > 2);
}

TEST(Rematerialize, ALongChainIsPlannedInBlocks) {
  std::mt19937 random(11);
  const Chain chain = random_chain(1663, 1000, random);
  const std::int64_t everything = evaluate(chain, {}).peak_bytes;
  const RematerializationPlan plan = rematerialize(chain, everything / 8);
  EXPECT_FALSE(plan.is_exact);
  EXPECT_LE(plan.outcome.peak_bytes, everything / 8);
  EXPECT_LE(plan.outcome.recompute_seconds, 2 * (plan.outcome.seconds - plan.outcome.recompute_seconds));
}

TEST(Rematerialize, TheFrontierGoesFromTheLeastBytesToKeepingEverything) {
  std::mt19937 random(12);
  const Chain chain = random_chain(15, 1000, random);
  const Rematerializer rematerializer(chain);
  const std::vector<RematerializationPlan> plans = rematerializer.frontier(10);
  ASSERT_GE(plans.size(), 3U);
  ASSERT_LE(plans.size(), 10U);
  EXPECT_EQ(plans.front().outcome.peak_bytes, rematerializer.least_bytes());
  EXPECT_EQ(plans.back().outcome.recompute_seconds, 0);
  for (std::size_t index = 1; index < plans.size(); ++index) {
    EXPECT_LT(plans[index].outcome.seconds, plans[index - 1].outcome.seconds);
    EXPECT_GT(plans[index].outcome.peak_bytes, plans[index - 1].outcome.peak_bytes);
  }
  EXPECT_THROW(rematerializer.frontier(1), InvalidArgument);
}

}  // namespace
}  // namespace gpipe
