// The simulator with one engine a worker: what one order of all messages costs, beside flows on their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/engine_proof.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/simulate.h"
#include "tests/schedule/message_programs.h"

namespace gpipe {
namespace {

using detail::MessageEngines;
using detail::one_engine_a_worker;
using detail::Spectator;
using detail::TokenGame;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kMessageSeconds = 0.05;  // of one message, where a worker's forward of a micro-batch takes 1
constexpr double kNoise = 0.3;

// The seconds of every action, by worker and position.
using ActionSeconds = std::vector<std::vector<double>>;

struct Arrival {
  double seconds = 0;
};

// A second opinion on the time of a step. Every message takes as long; it has its flow, or both engines, for itself.
class MessageClock : public Spectator<Arrival> {
 public:
  MessageClock(const FlowTable& table, const ActionSeconds& seconds, double message_seconds, bool has_engines)
      : table_(table),
        seconds_(seconds),
        message_seconds_(message_seconds),
        has_engines_(has_engines),
        now_(seconds.size(), 0),
        flow_free_(table.flows.size(), 0),
        engine_free_(seconds.size(), 0) {}

  void take(int worker, int /*flow*/, const Arrival& message) { wait(worker, message.seconds); }
  void start(int worker, int index) { now_[worker] += seconds_[worker][index]; }
  Arrival put(int worker, int /*flow*/) { return {now_[worker]}; }
  Arrival carry(int flow, const Arrival& message) {
    if (table_.is_local(flow)) return message;
    double& one = has_engines_ ? engine_free_[table_.source_worker[flow]] : flow_free_[flow];
    double& other = has_engines_ ? engine_free_[table_.destination_worker[flow]] : flow_free_[flow];
    one = other = std::max({message.seconds, one, other}) + message_seconds_;
    return {one};
  }

  double step_seconds() const { return *std::max_element(now_.begin(), now_.end()); }

 private:
  void wait(int worker, double until) { now_[worker] = std::max(now_[worker], until); }

  const FlowTable& table_;
  const ActionSeconds& seconds_;
  const double message_seconds_;
  const bool has_engines_;
  std::vector<double> now_;          // per worker
  std::vector<double> flow_free_;    // per flow
  std::vector<double> engine_free_;  // per worker
};

double seconds_with_flows(const Schedule& schedule, const FlowTable& table, const ActionSeconds& seconds,
                          double message_seconds) {
  MessageClock clock(table, seconds, message_seconds, false);
  TokenGame<MessageClock>(schedule, table, {}, clock).run();
  return clock.step_seconds();
}

double seconds_with_engines(const Schedule& schedule, const FlowTable& table, const ActionSeconds& seconds,
                            double message_seconds, const MessageOrder& order) {
  MessageEngines engines = one_engine_a_worker(table, order);
  engines.sender_waits = false;
  MessageClock clock(table, seconds, message_seconds, true);
  EXPECT_TRUE(TokenGame<MessageClock>(schedule, table, {{}, false, &engines}, clock).run());
  return clock.step_seconds();
}

Costs costs_with_messages(const Schedule& schedule, const Routes& routes, double message_seconds) {
  constexpr std::int64_t kBytes = 1000;
  Costs costs = uniform_costs(schedule);
  costs.routes = routes;
  costs.skip_bytes.assign(routes.skips.size(), kBytes);
  costs.tie_bytes.assign(routes.ties.size(), kBytes);
  for (StageCosts& stage : costs.stages) stage.output_bytes = kBytes;
  costs.link.bytes_per_second = kBytes / message_seconds;
  return costs;
}

double seconds_of(const StageCosts& stage, ActionKind kind) {
  if (kind == ActionKind::kForward) return stage.forward_seconds;
  if (kind == ActionKind::kBackward) return stage.backward_seconds;
  return kind == ActionKind::kInputGrad ? stage.input_grad_seconds : stage.weight_grad_seconds;
}

// What the actions cost, each times what `factor_of(action)` says.
template <typename FactorOf>
ActionSeconds action_seconds(const Schedule& schedule, const Costs& costs, const FactorOf& factor_of) {
  ActionSeconds seconds;
  for (const std::vector<Action>& actions : schedule.workers) {
    seconds.emplace_back();
    for (const Action& action : actions) {
      seconds.back().push_back(seconds_of(costs.stages[action.stage], action.kind) * factor_of(action));
    }
  }
  return seconds;
}

// Of step times beside those of flows on their own.
struct Ratios {
  double sum = 0;
  double max = 0;
  int number = 0;
  void add(double ratio) {
    sum += ratio;
    max = std::max(max, ratio);
    ++number;
  }
  double mean() const { return sum / number; }
};

// The table in docs/schedules.md.
TEST(OneEngineStep, TakesLittleMoreThanFlowsOnTheirOwn) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(1 - kNoise, 1 + kNoise);
  Ratios known;
  Ratios uniform;
  Ratios noisy_actions;
  Ratios noisy_stages;
  test::for_each_message_case(
      {2, 3, 4, 7, 8}, [&](const Schedule& schedule, const Routes& routes, const std::string& what) {
        SCOPED_TRACE(what);
        const Costs costs = costs_with_messages(schedule, routes, kMessageSeconds);
        const FlowTable table = make_flow_table(schedule, routes);
        const MessageOrder order = message_order(schedule, costs);
        const auto ratio = [&](const MessageOrder& played, const ActionSeconds& seconds) {
          return seconds_with_engines(schedule, table, seconds, kMessageSeconds, played) /
                 seconds_with_flows(schedule, table, seconds, kMessageSeconds);
        };
        const ActionSeconds seconds = action_seconds(schedule, costs, [](const Action&) { return 1.0; });
        EXPECT_LE(ratio(order, seconds), 1.05);
        EXPECT_LE(ratio(message_order(schedule, routes), seconds), 1.05);
        known.add(ratio(order, seconds));
        uniform.add(ratio(message_order(schedule, routes), seconds));
        noisy_actions.add(ratio(order, action_seconds(schedule, costs, [&](const Action&) { return noise(random); })));
        std::vector<double> factors(static_cast<std::size_t>(schedule.num_stages) * kNumActionKinds);
        for (double& factor : factors) factor = noise(random);
        noisy_stages.add(ratio(order, action_seconds(schedule, costs, [&](const Action& action) {
                                 return factors[action.stage * kNumActionKinds + static_cast<int>(action.kind)];
                               })));

        SimulateOptions options;
        options.one_engine = order;
        EXPECT_NEAR(simulate(schedule, costs, options).makespan_seconds,
                    seconds_with_engines(schedule, table, seconds, kMessageSeconds, order), 1e-9);
      });
  EXPECT_NEAR(known.mean(), 1.004, 0.001);
  EXPECT_NEAR(known.max, 1.040, 0.002);
  EXPECT_NEAR(uniform.mean(), 1.008, 0.001);
  EXPECT_NEAR(uniform.max, 1.042, 0.002);
  EXPECT_NEAR(noisy_actions.mean(), 1.014, 0.002);
  EXPECT_NEAR(noisy_actions.max, 1.087, 0.01);
  EXPECT_NEAR(noisy_stages.mean(), 1.018, 0.002);
  EXPECT_NEAR(noisy_stages.max, 1.087, 0.01);
}

// An engine does one message at a time, in either direction: where they are long, they add up.
TEST(OneEngineStep, TakesLongerWhereMessagesAreLong) {
  struct Expected {
    double message_seconds;
    double mean;
    double max;
  };
  for (const Expected& expected : {Expected{0.1, 1.009, 1.080}, Expected{0.2, 1.028, 1.188}}) {
    Ratios ratios;
    test::for_each_message_case(
        {2, 3, 4, 7, 8}, [&](const Schedule& schedule, const Routes& routes, const std::string& /*what*/) {
          const Costs costs = costs_with_messages(schedule, routes, expected.message_seconds);
          const FlowTable table = make_flow_table(schedule, routes);
          const ActionSeconds seconds = action_seconds(schedule, costs, [](const Action&) { return 1.0; });
          const MessageOrder order = message_order(schedule, costs);
          ratios.add(seconds_with_engines(schedule, table, seconds, expected.message_seconds, order) /
                     seconds_with_flows(schedule, table, seconds, expected.message_seconds));
        });
    EXPECT_NEAR(ratios.mean(), expected.mean, 0.002) << expected.message_seconds;
    EXPECT_NEAR(ratios.max, expected.max, 0.005) << expected.message_seconds;
  }
}

TEST(OneEngineStep, AMessageWaitsForThoseBeforeIt) {
  const Schedule schedule = schedules::gpipe(2, 2);
  Costs costs = uniform_costs(schedule);
  for (StageCosts& stage : costs.stages) stage.forward_seconds = 0.25;
  costs.link = {0.2, 1000};
  for (StageCosts& stage : costs.stages) stage.output_bytes = 300;
  SimulateOptions options;
  options.one_engine = message_order(schedule, costs);
  const Timeline timeline = simulate(schedule, costs, options);
  // The second activation is put at 0.5 and begins at 0.75, when the first one has arrived, with its latency.
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[0].start_seconds, 0.75);
  EXPECT_DOUBLE_EQ(timeline.workers[1].spans[1].start_seconds, 1.25);
  // Flows on their own send the second one 0.2 earlier: only the bytes of the first have to be through.
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).workers[1].spans[1].start_seconds, 1.05);
}

TEST(OneEngineStep, AMessageThatIsReadyWaitsForThoseBeforeItThatAreNot) {
  const Schedule schedule = schedules::one_f_one_b(2, 2);
  Costs costs = uniform_costs(schedule);
  costs.link.latency_seconds = 0.5;
  SimulateOptions options;
  options.one_engine = message_order(schedule, costs);
  const FlowMessage activation = {0, 1};
  const FlowMessage gradient = {1, 0};
  ASSERT_EQ(options.one_engine, MessageOrder({{0, 0}, activation, gradient, {1, 1}}));
  EXPECT_DOUBLE_EQ(simulate(schedule, costs, options).workers[1].spans[2].start_seconds, 4.5);
  // The activation is put at 2, the gradient at 4.5; each takes 0.5.
  options.one_engine = {{0, 0}, gradient, activation, {1, 1}};
  EXPECT_DOUBLE_EQ(simulate(schedule, costs, options).workers[1].spans[2].start_seconds, 5.5);
}

TEST(OneEngineStep, OrderIsThatOfUniformCostsWhereMessagesAreFree) {
  test::for_each_message_case({2, 3, 8}, [](const Schedule& schedule, const Routes& routes, const std::string& what) {
    Costs costs = uniform_costs(schedule);
    costs.routes = routes;
    costs.skip_bytes.assign(routes.skips.size(), 1);
    costs.tie_bytes.assign(routes.ties.size(), 1);
    EXPECT_EQ(message_order(schedule, costs), message_order(schedule, routes)) << what;
  });
}

TEST(OneEngineStep, ASlowWorkerPutsItsMessagesLater) {
  const Schedule schedule = schedules::one_f_one_b(3, 2);
  Costs costs = uniform_costs(schedule);
  costs.workers.resize(3);
  costs.workers[0].speed = 0.1;
  const FlowTable table = make_flow_table(schedule);
  // Activations of worker 0 are at 10 and 20, the first gradient of worker 2 at 14.
  EXPECT_EQ(to_text(table, message_order(schedule, costs)),
            "activation 0 -> 1 of micro-batch 0\n"
            "activation 1 -> 2 of micro-batch 0\n"
            "gradient 2 -> 1 of micro-batch 0\n"
            "activation 0 -> 1 of micro-batch 1\n"
            "activation 1 -> 2 of micro-batch 1\n"
            "gradient 1 -> 0 of micro-batch 0\n"
            "gradient 2 -> 1 of micro-batch 1\n"
            "gradient 1 -> 0 of micro-batch 1\n");
}

TEST(OneEngineStep, RefusesAnOrderThatGetsStuck) {
  const Schedule schedule = schedules::one_f_one_b(2, 1);
  SimulateOptions options;
  options.one_engine = {{1, 0}, {0, 0}};
  try {
    simulate(schedule, uniform_costs(schedule), options);
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_EQ(error.rule(), Rule::kDeadlock);
    EXPECT_EQ(error.cycle().size(), 2u);
    EXPECT_THAT(error.what(), HasSubstr("1F0 waits to receive activation 0 -> 1 of micro-batch 0"));
  }
  options.one_engine.pop_back();
  EXPECT_THROW(simulate(schedule, uniform_costs(schedule), options), InvalidArgument);
}

TEST(OneEngineStep, RefusesCapacitiesBesideAnOrder) {
  const Schedule schedule = schedules::one_f_one_b(2, 1);
  SimulateOptions options;
  options.one_engine = message_order(schedule);
  options.capacities = {1, 1};
  EXPECT_THAT([&] { simulate(schedule, uniform_costs(schedule), options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("capacities")));
}

}  // namespace
}  // namespace gpipe
