// Message orders: one engine a worker never gets stuck in one of them, and nearly always in others.
#include "gpipe/schedule/message_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/engine_proof.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/simulate/simulate.h"
#include "tests/schedule/message_programs.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

using detail::MessageEngines;
using detail::survives_engines;
using test::for_each_message_case;
using test::message_programs;
using test::MessagePrograms;
using test::MessageStep;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A second opinion, written without the library's machinery: workers that put and take, and wait for every put, and one
// list of messages a worker.
class EngineOracle {
 public:
  EngineOracle(const Schedule& schedule, const FlowTable& table, const MessageOrder& order)
      : table_(table), programs_(message_programs(schedule, table)), lists_(messages_by_worker(order, table)) {}

  // The theorem of Note [One engine a worker]: no put comes in the list before something that the worker did earlier.
  bool is_fit() const {
    for (std::size_t worker = 0; worker < programs_.size(); ++worker) {
      std::size_t latest = 0;
      for (const MessageStep& step : programs_[worker]) {
        const auto& list = lists_[worker];
        const std::size_t place = std::find(list.begin(), list.end(), step.message) - list.begin();
        if (step.is_put && place < latest) return false;
        latest = std::max(latest, place);
      }
    }
    return true;
  }

  // Lets workers and engines move in any order until nothing moves.
  bool runs_to_its_end(std::mt19937& random) {
    state_.clear();
    at_.assign(programs_.size(), 0);
    next_.assign(programs_.size(), 0);
    std::vector<std::size_t> workers(programs_.size());
    for (std::size_t worker = 0; worker < workers.size(); ++worker) workers[worker] = worker;
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(workers.begin(), workers.end(), random);
      for (const std::size_t worker : workers) moved |= move(worker) || carry(worker);
    }
    for (std::size_t worker = 0; worker < programs_.size(); ++worker) {
      if (at_[worker] != programs_[worker].size() || next_[worker] != lists_[worker].size()) return false;
    }
    return true;
  }

 private:
  enum class State { kNotPut, kPut, kCarried };

  State& state(const FlowMessage& message) { return state_[{message.flow, message.micro_batch}]; }

  bool move(std::size_t worker) {
    if (at_[worker] == programs_[worker].size()) return false;
    const MessageStep& step = programs_[worker][at_[worker]];
    State& now = state(step.message);
    if (now == State::kCarried) {
      ++at_[worker];
      return true;
    }
    if (!step.is_put || now == State::kPut) return false;
    now = State::kPut;
    return true;
  }

  bool carry(std::size_t worker) {
    if (next_[worker] == lists_[worker].size()) return false;
    const FlowMessage& message = lists_[worker][next_[worker]];
    const int source = table_.source_worker[message.flow];
    const int destination = table_.destination_worker[message.flow];
    for (const int end : {source, destination}) {
      if (next_[end] == lists_[end].size() || lists_[end][next_[end]] != message) return false;
    }
    if (state(message) != State::kPut) return false;
    state(message) = State::kCarried;
    ++next_[source];
    ++next_[destination];
    return true;
  }

  const FlowTable& table_;
  const MessagePrograms programs_;
  const std::vector<MessageOrder> lists_;
  std::map<std::pair<int, int>, State> state_;
  std::vector<std::size_t> at_;    // per worker
  std::vector<std::size_t> next_;  // per worker
};

// Every worker's messages in the order of its program, on the engine whose key `key_of(own, other, is_put)` says.
template <typename KeyOf>
MessageEngines engines_in_program_order(const Schedule& schedule, const FlowTable& table, const KeyOf& key_of) {
  MessageEngines engines;
  engines.sender_waits = false;
  engines.at_source.assign(table.flows.size(), -1);
  engines.at_destination.assign(table.flows.size(), -1);
  std::map<std::tuple<int, int, int>, int> numbers;
  const MessagePrograms programs = message_programs(schedule, table);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    for (const MessageStep& step : programs[worker]) {
      const int flow = step.message.flow;
      const int other = step.is_put ? table.destination_worker[flow] : table.source_worker[flow];
      const int engine = numbers.emplace(key_of(worker, other, step.is_put), numbers.size()).first->second;
      engines.lists.resize(numbers.size());
      engines.lists[engine].push_back(flow);
      (step.is_put ? engines.at_source : engines.at_destination)[flow] = engine;
    }
  }
  return engines;
}

MessageEngines engine_per_pair(const Schedule& schedule, const FlowTable& table) {
  return engines_in_program_order(schedule, table, [](int own, int other, bool) { return std::tuple(own, other, 0); });
}

MessageEngines engine_per_direction(const Schedule& schedule, const FlowTable& table) {
  return engines_in_program_order(
      schedule, table, [](int own, int other, bool is_put) { return std::tuple(own, other, is_put ? 1 : 0); });
}

MessageEngines engine_per_worker(const Schedule& schedule, const FlowTable& table) {
  return engines_in_program_order(schedule, table, [](int own, int, bool) { return std::tuple(own, 0, 0); });
}

Costs random_stage_costs(const Schedule& schedule, const Routes& routes, std::mt19937& random) {
  std::uniform_real_distribution<double> factor(0.1, 3);
  Costs costs = uniform_costs(schedule);
  costs.routes = routes;
  costs.skip_bytes.assign(routes.skips.size(), 100);
  costs.tie_bytes.assign(routes.ties.size(), 100);
  costs.link = {0.05, 1000};
  for (StageCosts& stage : costs.stages) {
    for (double* seconds :
         {&stage.forward_seconds, &stage.backward_seconds, &stage.input_grad_seconds, &stage.weight_grad_seconds}) {
      *seconds *= factor(random);
    }
    stage.output_bytes = 100;
  }
  return costs;
}

std::size_t number_of_messages(const MessagePrograms& programs) {
  std::size_t number = 0;
  for (const auto& program : programs) {
    number += std::count_if(program.begin(), program.end(), [](const MessageStep& step) { return step.is_put; });
  }
  return number;
}

//   worker 0   F0 F1    B0 B0 F2    B1 B1    B2 B2
//   worker 1      F0 B0 B0 F1 B1 B1 F2 B2 B2
TEST(MessageOrder, IsThatOfThePuts) {
  const Schedule schedule = parse_text("F0 F1 B0 F2 B1 B2\nF0 B0 F1 B1 F2 B2\n");
  const FlowTable table = make_flow_table(schedule);
  EXPECT_EQ(to_text(table, message_order(schedule)),
            "activation 0 -> 1 of micro-batch 0\n"
            "activation 0 -> 1 of micro-batch 1\n"
            "gradient 1 -> 0 of micro-batch 0\n"
            "gradient 1 -> 0 of micro-batch 1\n"
            "activation 0 -> 1 of micro-batch 2\n"
            "gradient 1 -> 0 of micro-batch 2\n");
}

TEST(MessageOrder, TiesComeOnceAndSkipsWithTheirMicroBatches) {
  const Schedule schedule = schedules::gpipe(3, 1);
  const Routes routes = {{{0, 2}}, {{0, 2}}};
  EXPECT_EQ(to_text(make_flow_table(schedule, routes), message_order(schedule, routes)),
            "activation 0 -> 1 of micro-batch 0\n"
            "skip 0 -> 2 of micro-batch 0\n"
            "activation 1 -> 2 of micro-batch 0\n"
            "gradient 2 -> 1 of micro-batch 0\n"
            "skip gradient 2 -> 0 of micro-batch 0\n"
            "tie 2 -> 0\n"
            "gradient 1 -> 0 of micro-batch 0\n");
}

TEST(MessageOrder, OfAWorkerIsTheRestOfItWithoutTheMessagesOfOthers) {
  const Schedule schedule = schedules::one_f_one_b(3, 2);
  const FlowTable table = make_flow_table(schedule);
  const MessageOrder order = message_order(schedule);
  const std::vector<MessageOrder> lists = messages_by_worker(order, table);
  ASSERT_EQ(lists.size(), 3u);
  EXPECT_EQ(lists[0].size(), 4u);
  EXPECT_EQ(lists[1].size(), 8u);
  EXPECT_EQ(lists[1], order);  // everything passes the worker in the middle
  for (const FlowMessage& message : lists[2]) {
    EXPECT_TRUE(table.source_worker[message.flow] == 2 || table.destination_worker[message.flow] == 2);
  }
}

TEST(MessageOrder, OfOneWorkerIsEmpty) {
  const Schedule schedule = schedules::interleaved(1, 4, 2);
  EXPECT_TRUE(message_order(schedule).empty());
  EXPECT_TRUE(validate(schedule).one_engine.survives);
}

TEST(MessageOrder, RefusesAScheduleThatDeadlocks) {
  EXPECT_THROW(message_order(parse_text("0F0 3F0 0B0 3B0\n2F0 1F0 2B0 1B0\n")), ScheduleError);
}

// The three arrangements get stuck in many of the schedules in which one engine a worker, in one order, never does.
TEST(OneEngine, NeverGetsStuckWhereProgramOrderDoes) {
  int num_cases = 0;
  std::map<std::string, int> num_stuck;
  for_each_message_case({2, 3, 4, 7, 8}, [&](const Schedule& schedule, const Routes& routes, const std::string& what) {
    SCOPED_TRACE(what);
    ++num_cases;
    const FlowTable table = make_flow_table(schedule, routes);
    ValidateOptions options;
    options.routes = routes;
    options.compute_capacities = false;
    const Certificate certificate = validate(schedule, options);
    EXPECT_TRUE(certificate.one_engine.survives);
    EXPECT_TRUE(certificate.one_engine.counter_example.empty());

    num_stuck["per pair"] += !survives_engines(schedule, table, engine_per_pair(schedule, table)).survives;
    num_stuck["per worker"] += !survives_engines(schedule, table, engine_per_worker(schedule, table)).survives;
    const Survival per_direction = survives_engines(schedule, table, engine_per_direction(schedule, table));
    EXPECT_EQ(per_direction.survives, certificate.one_channel_per_pair.survives);
    EXPECT_EQ(per_direction.survives, per_direction.counter_example.empty());
    num_stuck["per direction"] += !per_direction.survives;
  });
  EXPECT_GT(num_stuck["per pair"], num_cases / 2);
  EXPECT_GT(num_stuck["per worker"], num_cases / 2);
  EXPECT_GT(num_stuck["per direction"], num_cases / 10);
  for (const auto& [arrangement, number] : num_stuck) RecordProperty(arrangement, number);
}

TEST(OneEngine, NeverGetsStuckInAnOrderOfOtherCosts) {
  std::mt19937 random(7);
  for_each_message_case({2, 3, 4, 7, 8}, [&](const Schedule& schedule, const Routes& routes, const std::string& what) {
    SCOPED_TRACE(what);
    const MessageOrder order = message_order(schedule, random_stage_costs(schedule, routes, random));
    const FlowTable table = make_flow_table(schedule, routes);
    EXPECT_EQ(order.size(), number_of_messages(message_programs(schedule, table)));
    EXPECT_TRUE(survives_one_engine(schedule, routes, order).survives);
  });
}

// Costs of nothing put everything at one time.
TEST(OneEngine, NeverGetsStuckWhereAllMessagesHaveOneTime) {
  for_each_message_case({2, 4}, [&](const Schedule& schedule, const Routes& routes, const std::string& what) {
    SCOPED_TRACE(what);
    Costs costs;
    costs.stages.assign(schedule.num_stages, {0, 0, 0, 0, 0});
    costs.routes = routes;
    costs.skip_bytes.assign(routes.skips.size(), 0);
    costs.tie_bytes.assign(routes.ties.size(), 0);
    EXPECT_TRUE(survives_one_engine(schedule, routes, message_order(schedule, costs)).survives);
  });
}

TEST(OneEngine, SurvivesEveryNumberOfChunks) {
  for (int num_workers = 2; num_workers <= 5; ++num_workers) {
    test::for_each_schedule(num_workers, 2 * num_workers, 4, [](const Schedule& schedule, const std::string& what) {
      EXPECT_TRUE(survives_one_engine(schedule, {}, message_order(schedule)).survives) << what;
      const Schedule updated = with_updates(schedule);
      const Routes routes = {{}, {{0, schedule.num_stages - 1}}};
      EXPECT_TRUE(survives_one_engine(updated, routes, message_order(updated, routes)).survives) << what;
    });
  }
}

// Of the drop-in forward: the part of the order that belongs to forwards is one of a schedule that has no others.
TEST(OneEngine, RunsAStepOfForwardsInItsPartOfTheOrder) {
  for_each_message_case({2, 4, 7}, [&](const Schedule& schedule, const Routes& routes, const std::string& what) {
    SCOPED_TRACE(what);
    Schedule forwards = schedule;
    for (std::vector<Action>& actions : forwards.workers) {
      actions.erase(std::remove_if(actions.begin(), actions.end(),
                                   [](const Action& action) { return action.kind != ActionKind::kForward; }),
                    actions.end());
    }
    const FlowTable table = make_flow_table(schedule, routes);
    const FlowTable forward_table = make_flow_table(forwards, routes);
    MessageOrder part;
    for (const FlowMessage& message : message_order(schedule, routes)) {
      const auto& flows = forward_table.flows;
      const auto found = std::find(flows.begin(), flows.end(), table.flows[message.flow]);
      if (found != flows.end()) part.push_back({static_cast<int>(found - flows.begin()), message.micro_batch});
    }
    EXPECT_TRUE(survives_one_engine(forwards, routes, part).survives);
  });
}

TEST(OneEngine, SaysWhatWaitsForEachOther) {
  const Survival survival = survives_one_engine(schedules::one_f_one_b(2, 2), {}, {{0, 0}, {1, 0}, {1, 1}, {0, 1}});
  EXPECT_FALSE(survival.survives);
  EXPECT_THAT(survival.counter_example,
              ElementsAre("worker 1: 1F1 waits to receive activation 0 -> 1 of micro-batch 1, and 1B1 sends gradient 1 "
                          "-> 0 of micro-batch 1 only after that",
                          "worker 1: activation 0 -> 1 of micro-batch 1 comes after gradient 1 -> 0 of micro-batch 1 "
                          "in the list of its engine"));
}

TEST(OneEngine, SaysThatTwoMessagesOfOneActionAreTurnedAround) {
  const Schedule schedule = schedules::gpipe(3, 1);
  const Routes routes = {{{0, 2}}, {}};
  MessageOrder order = message_order(schedule, routes);
  std::swap(order[0], order[1]);
  EXPECT_THAT(survives_one_engine(schedule, routes, order).counter_example,
              ElementsAre("worker 0: 0F0 waits to send activation 0 -> 1 of micro-batch 0, and sends skip 0 -> 2 of "
                          "micro-batch 0 only after that",
                          "worker 0: activation 0 -> 1 of micro-batch 0 comes after skip 0 -> 2 of micro-batch 0 in "
                          "the list of its engine"));
}

// The gradient may come before an activation that is put earlier: its receiver takes it later.
TEST(OneEngine, ReceivesAMessageBeforeItsWorkerTakesIt) {
  EXPECT_TRUE(survives_one_engine(schedules::one_f_one_b(2, 2), {}, {{0, 0}, {1, 0}, {0, 1}, {1, 1}}).survives);
}

TEST(OneEngine, SaysThatAFlowIsTurnedAround) {
  const Schedule schedule = schedules::one_f_one_b(2, 2);
  MessageOrder order = message_order(schedule);
  std::swap(order[0], order[1]);
  EXPECT_THAT(survives_one_engine(schedule, {}, order).counter_example,
              ElementsAre("worker 0 sends activation 0 -> 1 of micro-batch 0 before activation 0 -> 1 of micro-batch 1",
                          "the message order has them the other way round"));
}

TEST(OneEngine, InProgramOrderSaysWhatWaitsForEachOther) {
  const Schedule schedule = schedules::one_f_one_b(2, 2);
  const FlowTable table = make_flow_table(schedule);
  EXPECT_THAT(survives_engines(schedule, table, engine_per_worker(schedule, table)).counter_example,
              ElementsAre("worker 1: activation 0 -> 1 of micro-batch 1 comes after gradient 1 -> 0 of micro-batch 0 "
                          "in the list of its engine",
                          "worker 0: gradient 1 -> 0 of micro-batch 0 comes after activation 0 -> 1 of micro-batch 1 "
                          "in the list of its engine"));
}

TEST(OneEngine, RefusesAnOrderThatLacksMessagesOrHasOthers) {
  const Schedule schedule = schedules::one_f_one_b(2, 2);
  const MessageOrder order = message_order(schedule);
  const auto survives = [&](const MessageOrder& other) { return [&] { survives_one_engine(schedule, {}, other); }; };
  MessageOrder changed = order;
  changed.pop_back();
  EXPECT_THAT(survives(changed), ThrowsMessage<InvalidArgument>(HasSubstr("gradient 1 -> 0 of micro-batch 1")));
  changed.push_back(order.front());
  EXPECT_THAT(survives(changed), ThrowsMessage<InvalidArgument>(HasSubstr("activation 0 -> 1 of micro-batch 0 twice")));
  for (const FlowMessage& wrong : {FlowMessage{0, 2}, FlowMessage{0, -1}, FlowMessage{2, 0}, FlowMessage{-1, 0}}) {
    changed.back() = wrong;
    EXPECT_THROW(survives(changed)(), InvalidArgument);
  }
  // Two stages on one worker: what they hand over is no message.
  const Schedule folded = parse_text("0F0 1F0\n2F0\n");
  EXPECT_THROW(survives_one_engine(folded, {}, {{0, 0}, {1, 0}}), InvalidArgument);
}

struct OrderTally {
  int refused = 0;
  int harmless = 0;
};

// The proof, the theorem and the oracle agree about the order, and what is refused has its counter-example.
void check_order(const Schedule& schedule, const FlowTable& table, const MessageOrder& order, std::mt19937& random,
                 OrderTally& tally) {
  const Survival survival = detail::survives_one_engine(schedule, table, order);
  EngineOracle oracle(schedule, table, order);
  ASSERT_EQ(survival.survives, oracle.is_fit()) << to_text(table, order);
  ASSERT_EQ(survival.survives, oracle.runs_to_its_end(random)) << to_text(table, order);
  ASSERT_EQ(survival.survives, survival.counter_example.empty()) << to_text(table, order);
  ++(survival.survives ? tally.harmless : tally.refused);
}

// Every order in which the messages of each flow come in theirs.
TEST(OneEngine, IsProvenExactlyInTheOrdersInWhichItRuns) {
  std::mt19937 random(3);
  OrderTally tally;
  const auto check_all = [&](const Schedule& schedule, const Routes& routes) {
    const FlowTable table = make_flow_table(schedule, routes);
    std::vector<int> flows;
    std::vector<std::vector<int>> micro_batches(table.flows.size());
    for (const FlowMessage& message : message_order(schedule, routes)) {
      flows.push_back(message.flow);
      micro_batches[message.flow].push_back(message.micro_batch);
    }
    std::sort(flows.begin(), flows.end());
    do {
      std::vector<std::size_t> next(table.flows.size(), 0);
      MessageOrder order;
      for (const int flow : flows) order.push_back({flow, micro_batches[flow][next[flow]++]});
      check_order(schedule, table, order, random, tally);
    } while (!HasFatalFailure() && std::next_permutation(flows.begin(), flows.end()));
  };
  for (const ScheduleInfo& info : schedule_registry()) {
    SCOPED_TRACE(info.name);
    const bool has_chunks = info.default_chunks > 1;
    check_all(make_schedule(info.name, 2, has_chunks ? 1 : 4), {});
    check_all(make_schedule(info.name, 2, has_chunks ? 1 : 2), {{}, {{0, 1}}});
    if (!has_chunks) check_all(make_schedule(info.name, 3, 2), {});
    if (!has_chunks) check_all(make_schedule(info.name, 3, 1), {{{0, 2}}, {}});
  }
  EXPECT_GT(tally.refused, 10000);
  EXPECT_GT(tally.harmless, 50);
}

// What has been proven runs to its end in simulation, too; what has not is refused there.
TEST(OneEngine, NoSwapOfTwoMessagesSlipsThrough) {
  std::mt19937 random(5);
  OrderTally tally;
  for (const ScheduleInfo& info : schedule_registry()) {
    const Schedule schedule = make_schedule(info.name, 3, 3);
    for (const Routes& routes : test::all_routes(schedule)) {
      SCOPED_TRACE(info.name);
      const FlowTable table = make_flow_table(schedule, routes);
      const Costs costs = random_stage_costs(schedule, routes, random);
      const MessageOrder order = message_order(schedule, routes);
      for (std::size_t one = 0; one < order.size(); ++one) {
        for (std::size_t other = one + 1; other < order.size(); ++other) {
          SimulateOptions options;
          options.one_engine = order;
          std::swap(options.one_engine[one], options.one_engine[other]);
          const int harmless_before = tally.harmless;
          check_order(schedule, table, options.one_engine, random, tally);
          if (tally.harmless == harmless_before) continue;
          EXPECT_GT(simulate(schedule, costs, options).makespan_seconds, 0);
        }
      }
    }
  }
  EXPECT_GT(tally.refused, 10000);
  EXPECT_GT(tally.harmless, 500);
}

// Workers that are threads, with pauses of chance: each puts, takes and waits as its program says. Messages are carried
// in the order of the lists.
class EngineThreads {
 public:
  EngineThreads(const Schedule& schedule, const FlowTable& table, const MessageOrder& order)
      : table_(table),
        programs_(message_programs(schedule, table)),
        lists_(messages_by_worker(order, table)),
        next_(programs_.size(), 0) {}

  // False if they have not come to their ends in time.
  bool run() {
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < programs_.size(); ++worker) {
      threads.emplace_back([this, worker] { work(worker); });
    }
    for (std::thread& thread : threads) thread.join();
    return !is_late_;
  }

 private:
  using Key = std::pair<int, int>;

  static Key key_of(const FlowMessage& message) { return {message.flow, message.micro_batch}; }

  // Confined to its worker.
  void work(std::size_t worker) {
    std::mt19937 random(static_cast<std::uint32_t>(worker));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (const MessageStep& step : programs_[worker]) {
      for (auto pauses = random() % 4; pauses > 0; --pauses) std::this_thread::yield();
      std::unique_lock<std::mutex> lock(mutex_);
      if (step.is_put) put_.insert(key_of(step.message));
      carry_all();
      changed_.notify_all();
      const auto is_carried = [&] { return carried_.count(key_of(step.message)) > 0; };
      if (changed_.wait_until(lock, deadline, is_carried)) continue;
      is_late_ = true;
      return;
    }
  }

  // REQUIRES: the mutex is held.
  void carry_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t worker = 0; worker < lists_.size(); ++worker) {
        if (next_[worker] == lists_[worker].size()) continue;
        const FlowMessage& message = lists_[worker][next_[worker]];
        if (table_.source_worker[message.flow] != static_cast<int>(worker) || !put_.count(key_of(message))) continue;
        const int receiver = table_.destination_worker[message.flow];
        if (next_[receiver] == lists_[receiver].size() || lists_[receiver][next_[receiver]] != message) continue;
        carried_.insert(key_of(message));
        ++next_[worker];
        ++next_[receiver];
        moved = true;
      }
    }
  }

  const FlowTable& table_;
  const MessagePrograms programs_;
  const std::vector<MessageOrder> lists_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::set<Key> put_;
  std::set<Key> carried_;
  std::vector<std::size_t> next_;  // per worker
  std::atomic<bool> is_late_{false};
};

TEST(OneEngine, RunsOnThreads) {
  for (const ScheduleInfo& info : schedule_registry()) {
    const Schedule schedule = make_schedule(info.name, 4, 8);
    const Routes routes = test::all_routes(schedule).back();
    const FlowTable table = make_flow_table(schedule, routes);
    EXPECT_TRUE(EngineThreads(schedule, table, message_order(schedule, routes)).run()) << info.name;
  }
}

}  // namespace
}  // namespace gpipe
