// The forecast of a step is what the simulator finds when it plays every action.
#include "gpipe/simulate/forecast.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpipe/error.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/planner.h"
#include "gpipe/simulate/simulate.h"

namespace gpipe {
namespace {

using detail::Forecast;
using detail::forecast;
using detail::forecast_seconds;
using detail::LongSchedule;
using detail::make_long_schedule;
using detail::with_recompute;

constexpr Recompute kModes[] = {Recompute::kNever, Recompute::kExceptLast, Recompute::kAlways};
// Both add as many numbers as there are micro-batches, in different orders.
constexpr double kRounding = 1e-10;

void expect_same(const LongSchedule& few, const Schedule& all, const Costs& costs) {
  const Timeline timeline = simulate(all, costs);
  const Forecast step = forecast(few, costs);
  EXPECT_NEAR(step.step_seconds, timeline.makespan_seconds, kRounding * timeline.makespan_seconds);
  EXPECT_NEAR(step.bubble_fraction, timeline.bubble_fraction, 1e-9);
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    EXPECT_EQ(step.peak_bytes[worker], timeline.workers[worker].peak_bytes) << worker;
  }
}

// Costs of all kinds: whole numbers that are often equal, anything, and some that differ by almost nothing.
class RandomCosts {
 public:
  explicit RandomCosts(unsigned seed) : random_(seed), kind_(seed % 3) {}

  Costs make(const Schedule& schedule) {
    Costs costs;
    for (int stage = 0; stage < schedule.num_stages; ++stage) {
      StageCosts one;
      for (double* seconds : {&one.forward_seconds, &one.backward_seconds, &one.input_grad_seconds,
                              &one.weight_grad_seconds, &one.recompute_seconds, &one.update_seconds}) {
        *seconds = this->seconds();
      }
      one.output_bytes = number(0, 100);
      one.activation_bytes = number(0, 100);
      costs.stages.push_back(one);
    }
    if (number(0, 2) > 0) costs.link.latency_seconds = number(0, 1) * 5 * seconds();
    if (number(0, 2) > 0) costs.link.bytes_per_second = 20 + number(0, 100);
    if (number(0, 2) == 0) {
      costs.workers.resize(schedule.num_workers());
      for (WorkerCosts& worker : costs.workers) worker.speed = 1 + seconds();
    }
    if (number(0, 2) == 0) add_links(costs, schedule.num_workers());
    const int last = schedule.num_stages - 1;
    if (number(0, 2) == 0 && last > 0) {
      costs.routes.skips = {{0, last}, {last - 1, last}, {0, 1 + number(0, last - 1)}};
      costs.skip_bytes = {number(0, 100), number(0, 100), number(0, 100)};
      costs.routes.ties = {{0, last}};
      costs.tie_bytes = {number(0, 100)};
    }
    return costs;
  }

 private:
  // Some links are slower than what is sent over them is made.
  void add_links(Costs& costs, int num_workers) {
    costs.workers.resize(num_workers);
    for (WorkerCosts& worker : costs.workers) {
      if (number(0, 3) > 0) worker.link_to_next = LinkCosts{number(0, 1) * seconds(), 5.0 + number(0, 100)};
    }
  }

  int number(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double seconds() {
    if (kind_ == 0) return number(0, 4);
    if (kind_ == 1) return std::uniform_real_distribution<double>(0, 1)(random_);
    return 1 + 1e-4 * number(-2, 2) + 1e-6 * number(-3, 3);
  }

  std::mt19937 random_;
  unsigned kind_;
};

TEST(Forecast, IsTheSimulatedStepForAllSchedulesCostsAndModes) {
  std::mt19937 random(7);
  unsigned seed = 0;
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int num_workers : {1, 2, 3, 4, 6, 9}) {
      for (int repeat = 0; repeat < 9; ++repeat) {
        const int chunks = info.chunks_step * (2 + repeat % 2);
        const int num_micro_batches = 12'000 / num_workers + 30 * num_workers + static_cast<int>(random() % 50);
        std::vector<Recompute> modes(num_workers * (chunks == 0 ? info.default_chunks : chunks));
        for (Recompute& mode : modes) mode = kModes[random() % 3];
        SCOPED_TRACE(std::string(info.name) + " " + std::to_string(num_workers) + " " +
                     std::to_string(num_micro_batches) + " seed " + std::to_string(seed));
        const Schedule all = with_recompute(make_schedule(info.name, num_workers, num_micro_batches, chunks), modes);
        expect_same(with_recompute(make_long_schedule(info.name, num_workers, num_micro_batches, chunks), modes), all,
                    RandomCosts(seed).make(all));
        ++seed;
      }
    }
  }
}

TEST(Forecast, IsTheSimulatedStepOfFewMicroBatchesToTheLastBit) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (unsigned seed = 0; seed < 12; ++seed) {
      const Schedule all = make_schedule(info.name, 3, 7);
      const Costs costs = RandomCosts(seed).make(all);
      EXPECT_EQ(forecast_seconds(make_long_schedule(info.name, 3, 7), costs), simulate(all, costs).makespan_seconds);
    }
  }
}

// The last worker is slower by a millionth, but the first one's start is late: it takes thousands of rounds to show.
TEST(Forecast, NoticesASlowWorkerThatMakesItselfFeltLate) {
  for (const double slower : {1e-2, 1e-3, 1e-4, 1e-5}) {
    for (const char* name : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
      const int num_micro_batches = 40'000;
      const Schedule all = make_schedule(name, 3, num_micro_batches);
      Costs costs = uniform_costs(all);
      for (int stage = 0; stage < all.num_stages; ++stage) {
        costs.stages[stage].forward_seconds *= 1 + slower * ((stage * 2) % 3);
        costs.stages[stage].backward_seconds *= 1 + slower * ((stage + 1) % 3);
      }
      costs.link.latency_seconds = 0.25;
      SCOPED_TRACE(std::string(name) + " " + std::to_string(slower));
      expect_same(make_long_schedule(name, 3, num_micro_batches), all, costs);
    }
  }
}

// Each link carries an activation and a skip of each micro-batch, for longer than a worker takes to make them.
TEST(Forecast, IsTheSimulatedStepWhereSharedLinksAreTheSlowest) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const int num_micro_batches = 6'000;
    const Schedule all = make_schedule(info.name, 3, num_micro_batches);
    Costs costs = uniform_costs(all);
    costs.workers.resize(3);
    costs.workers[0].link_to_next = LinkCosts{0.5, 10};
    costs.workers[1].link_to_next = LinkCosts{0.25, 7};
    for (int stage = 0; stage < all.num_stages; ++stage) {
      costs.stages[stage].output_bytes = 40 + stage;
      if (stage == 0) continue;
      costs.routes.skips.push_back({stage - 1, stage});
      costs.skip_bytes.push_back(30 - stage);
    }
    SCOPED_TRACE(info.name);
    expect_same(make_long_schedule(info.name, 3, num_micro_batches), all, costs);
    // The slowest link takes its messages one after the other.
    EXPECT_GT(forecast_seconds(make_long_schedule(info.name, 3, num_micro_batches), costs), num_micro_batches * 69 / 7);
  }
}

TEST(Forecast, RefusesCostsThatAddUpToNoNumber) {
  const LongSchedule schedule = make_long_schedule("1f1b", 2, 2147483647);
  StageCosts costs;
  costs.forward_seconds = 1e301;
  EXPECT_THROW(forecast(schedule, uniform_costs(schedule.written, costs)), InvalidArgument);
}

Profile random_layers(unsigned seed, int num_layers) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> seconds(0.5, 1.5);
  Profile profile;
  for (int layer = 0; layer < num_layers; ++layer) {
    LayerProfile one;
    one.name = std::to_string(layer);
    one.forward_seconds = seconds(random);
    one.backward_seconds = 2 * seconds(random);
    one.activation_bytes = 100;
    one.output_bytes = 10;
    profile.layers.push_back(one);
  }
  return profile;
}

TEST(Forecast, LeadsToTheFastestPlanOfManyMicroBatches) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const Profile profile = random_layers(seed, 7);
    PlanOptions options;
    options.num_stages = 3;
    options.num_micro_batches = 4000;
    options.schedule = seed % 2 == 0 ? "1f1b" : "gpipe";
    options.link.latency_seconds = 0.1 * seed;
    options.recompute = kModes[seed % 3];
    const Plan best = plan(profile, options);
    const double simulated = simulate(schedule_of(best), best.costs).makespan_seconds;
    EXPECT_NEAR(best.predicted_step_seconds, simulated, kRounding * simulated) << seed;
    double least = simulated;
    for (int first = 1; first <= 5; ++first) {
      for (int second = 1; first + second <= 6; ++second) {
        const Plan other = plan_with_layers(profile, options, {first, second, 7 - first - second});
        least = std::min(least, simulate(schedule_of(other), other.costs).makespan_seconds);
      }
    }
    EXPECT_NEAR(simulated, least, 1e-8 * least) << seed;
  }
}

TEST(Forecast, LetsAPlanHaveAsManyMicroBatchesAsANumberCanCount) {
  for (const char* schedule : {"auto", "1f1b", "gpipe", "interleaved", "zb-v"}) {
    PlanOptions options;
    options.num_stages = 4;
    options.num_micro_batches = 2147483647;
    options.schedule = schedule;
    const Plan best = plan(random_layers(1, 12), options);
    EXPECT_EQ(best.num_micro_batches, 2147483647);
    EXPECT_GT(best.predicted_step_seconds, 2147483647.0 * 6) << schedule;
    EXPECT_LT(best.predicted_step_seconds, 2147483647.0 * 18) << schedule;
  }
}

}  // namespace
}  // namespace gpipe
