// The interpreter, the workers and the channels, with a stand-in stage that uses no torch. Built with the thread
// sanitizer by `make tsan`.
#include "gpipe/interpret/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "gpipe/interpret/channel.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;

// A message names what it is, so that the receiver can check it.
struct Letter {
  int micro_batch = -1;
  int stage = -1;
  bool is_gradient = false;
};

// Where a stand-in throws.
struct Fault {
  Action action{ActionKind::kForward, -1, -1};
  std::future<void> wait;  // if valid, it hangs there until this is ready instead
};

class StandIn {
 public:
  using Message = Letter;
  StandIn(int stage, int num_stages, const Fault& fault)
      : stage_(stage), num_stages_(num_stages), fault_(fault), random_(stage) {}

  void forward(int micro_batch, std::vector<Letter> inputs, std::vector<Letter>& outputs) {
    work({ActionKind::kForward, stage_, micro_batch});
    check(inputs, micro_batch, stage_ - 1, false, stage_ > 0);
    for (Letter& output : outputs) output = {micro_batch, stage_, false};
  }
  void recompute(int micro_batch) { work({ActionKind::kRecompute, stage_, micro_batch}); }
  void backward(int micro_batch, std::vector<Letter> inputs, std::vector<Letter>& outputs) {
    work({ActionKind::kBackward, stage_, micro_batch});
    answer(micro_batch, inputs, outputs);
  }
  void input_grad(int micro_batch, std::vector<Letter> inputs, std::vector<Letter>& outputs) {
    work({ActionKind::kInputGrad, stage_, micro_batch});
    answer(micro_batch, inputs, outputs);
  }
  void weight_grad(int micro_batch) { work({ActionKind::kWeightGrad, stage_, micro_batch}); }

  void give_tied(std::vector<Letter>& outputs) {
    for (Letter& output : outputs) output = {-1, stage_, true};
  }
  void take_tied(int source, Letter input) {
    ASSERT_EQ(input.stage, source);
    tied_from_.push_back(source);
  }
  void settle() { ++num_settled_; }
  void update() {
    ASSERT_EQ(num_settled_, num_updated_ + 1);
    ++num_updated_;
    work({ActionKind::kUpdate, stage_, 0});
  }

  std::string where() const { return "a stand-in"; }
  std::string failed_at() const { return where(); }

  const std::vector<int>& tied_from() const { return tied_from_; }
  int num_settled() const { return num_settled_; }
  int num_updated() const { return num_updated_; }

 private:
  void work(const Action& action) {
    if (action == fault_.action) {
      if (!fault_.wait.valid()) throw std::domain_error("a layer failed");
      fault_.wait.wait();
    }
    // Nothing depends on how long this takes: it makes the workers meet in many orders.
    for (volatile auto count = random_() % 10'000; count > 0;) count = count - 1;
    log_.push_back(action);
  }
  void answer(int micro_batch, const std::vector<Letter>& inputs, std::vector<Letter>& outputs) const {
    check(inputs, micro_batch, stage_ + 1, true, stage_ + 1 < num_stages_);
    for (Letter& output : outputs) output = {micro_batch, stage_, true};
  }
  void check(const std::vector<Letter>& inputs, int micro_batch, int from, bool is_gradient, bool has_neighbour) const {
    ASSERT_EQ(inputs.empty(), !has_neighbour);
    for (const Letter& input : inputs) {
      ASSERT_EQ(input.micro_batch, micro_batch);
      ASSERT_EQ(input.is_gradient, is_gradient);
      ASSERT_TRUE(&input != &inputs.front() || input.stage == from);
    }
  }

  const int stage_;
  const int num_stages_;
  const Fault& fault_;
  std::mt19937 random_;
  std::vector<Action> log_;
  std::vector<int> tied_from_;
  int num_settled_ = 0;
  int num_updated_ = 0;
};

struct Harness {
  explicit Harness(const Schedule& made, const Routes& routes = {}) : schedule(made), workers(made.num_workers()) {
    ValidateOptions options;
    options.routes = routes;
    auto proven = std::make_shared<ProvenSchedule>();
    for (const FlowCertificate& flow : validate(schedule, options).flows) {
      proven->capacities.push_back(flow.live_capacity);
    }
    proven->schedule = schedule;
    proven->table = make_flow_table(schedule, routes);
    for (int stage = 0; stage < schedule.num_stages; ++stage) {
      stages.push_back(std::make_unique<StandIn>(stage, schedule.num_stages, fault));
      pointers.push_back(stages.back().get());
    }
    executor = std::make_unique<Executor<StandIn>>(proven, make_channels<Letter>(proven->capacities), pointers);
  }

  Schedule schedule;
  Fault fault;
  std::vector<std::unique_ptr<StandIn>> stages;
  std::vector<StandIn*> pointers;
  Workers workers;
  std::unique_ptr<Executor<StandIn>> executor;
};

std::vector<Schedule> executable_schedules() {
  std::vector<Schedule> made;
  for (int k = 1; k <= 4; ++k) {
    for (const Schedule& schedule :
         {schedules::gpipe(k, 5), schedules::one_f_one_b(k, 6), schedules::interleaved(k, 7, 2),
          schedules::looped_bfs(k, 5, 2), schedules::hanayo(k, 5, 4), schedules::zb_h1(k, 5), schedules::zb_h2(k, 6),
          schedules::zb_v(k, 7), schedules::v_half(k, 5), schedules::v_min(k, 5), schedules::dualpipe_v(k, 5),
          schedules::forward_only(k, 4)}) {
      made.push_back(schedule);
      if (schedule.has_backward()) made.push_back(with_recompute(schedule, Recompute::kAlways));
    }
  }
  return made;
}

TEST(Executor, RunsEveryActionOfEveryScheduleAtItsLiveCapacities) {
  for (const Schedule& schedule : executable_schedules()) {
    SCOPED_TRACE(schedule.name + "\n" + to_text(schedule));
    Harness run(schedule);
    for (int step = 0; step < 3; ++step) {
      const Timeline timeline = run.executor->run(run.workers);
      EXPECT_GT(timeline.makespan_seconds, 0);
      for (int worker = 0; worker < schedule.num_workers(); ++worker) {
        EXPECT_LE(timeline.workers[worker].busy_seconds, timeline.makespan_seconds + 1e-9);
        EXPECT_GT(timeline.workers[worker].processor_seconds, 0);
        EXPECT_LE(timeline.workers[worker].processor_seconds, timeline.workers[worker].busy_seconds + 1e-3);
        const auto& spans = timeline.workers[worker].spans;
        ASSERT_EQ(spans.size(), schedule.workers[worker].size());
        for (std::size_t index = 0; index < spans.size(); ++index) {
          EXPECT_EQ(spans[index].action, schedule.workers[worker][index]);
          EXPECT_LE(spans[index].start_seconds, spans[index].end_seconds);
        }
      }
    }
  }
}

TEST(Executor, CarriesSkipsStraightToTheirStage) {
  Routes routes;
  routes.skips = {{0, 2}, {1, 3}};
  Harness run(schedules::one_f_one_b(4, 6), routes);
  EXPECT_NO_THROW(run.executor->run(run.workers));
}

TEST(Executor, AThrowAnywhereEndsTheStepReachesTheCallerOnceAndLeavesItUsable) {
  const Schedule schedule = with_recompute(schedules::one_f_one_b(3, 4), Recompute::kAlways);
  Harness run(schedule);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      run.fault.action = action;
      try {
        run.executor->run(run.workers);
        ADD_FAILURE() << to_string(action) << " did not throw";
      } catch (const ActionError& error) {
        EXPECT_EQ(error.action(), action);
        EXPECT_EQ(error.worker(), action.stage);
        EXPECT_THAT(error.what(), HasSubstr("a layer failed"));
        EXPECT_THAT(error.what(), HasSubstr(to_string(action)));
        EXPECT_THROW(std::rethrow_exception(error.cause()), std::domain_error);
      }
      run.fault.action.stage = -1;
      EXPECT_NO_THROW(run.executor->run(run.workers)) << "after " << to_string(action);
    }
  }
}

TEST(Executor, CarriesTiedGradientsToTheirOwnerOnceAStepAndSettlesEveryStageOnce) {
  Routes routes;
  routes.ties = {{0, 3}, {0, 2}, {1, 1}};
  Harness harness(schedules::one_f_one_b(4, 6), routes);
  harness.executor->run(harness.workers);
  EXPECT_THAT(harness.stages[0]->tied_from(), ::testing::UnorderedElementsAre(2, 3));
  for (const auto& stage : harness.stages) EXPECT_EQ(stage->num_settled(), 1);

  harness.executor->run(harness.workers, Phase::kForward);
  for (const auto& stage : harness.stages) EXPECT_EQ(stage->num_settled(), 1);
}

TEST(Executor, UpdatesEveryStageOnceBehindItsTiedGradients) {
  Routes routes;
  routes.ties = {{0, 7}, {0, 2}, {5, 6}};
  Harness harness(with_updates(schedules::zb_v(4, 6)), routes);
  const Timeline timeline = harness.executor->run(harness.workers);
  EXPECT_THAT(harness.stages[0]->tied_from(), ::testing::UnorderedElementsAre(2, 7));
  EXPECT_THAT(harness.stages[5]->tied_from(), ::testing::ElementsAre(6));
  for (const auto& stage : harness.stages) EXPECT_EQ(stage->num_updated(), 1);
  for (const WorkerTimeline& worker : timeline.workers) {
    EXPECT_EQ(worker.spans.back().action.kind, ActionKind::kUpdate);
  }
}

TEST(Executor, TheWatchdogNamesTheFlowEachWorkerWaitsFor) {
  Harness harness(schedules::one_f_one_b(3, 4));
  std::promise<void> release;
  harness.fault.action = {ActionKind::kForward, 2, 1};
  harness.fault.wait = release.get_future();
  std::string report;
  WatchdogOptions watchdog;
  watchdog.seconds = 0.5;
  int calls = 0;
  watchdog.on_stuck = [&](const StuckError& error) {
    ++calls;
    report = error.what();
  };
  // The layer returns when the two workers that waited have been woken: the error can reach the caller only then.
  std::atomic<int> num_woken{0};
  const auto release_the_last = [&](const std::function<void()>& work) {
    try {
      work();
    } catch (const CancelledError&) {
      if (++num_woken == 2) release.set_value();
      throw;
    }
  };
  EXPECT_THROW(harness.executor->run(harness.workers, Phase::kAll, release_the_last, watchdog), StuckError);
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(report, HasSubstr("worker 0 waits for gradient 1 -> 0, to run 0B1"));
  EXPECT_THAT(report, HasSubstr("worker 1 waits for gradient 2 -> 1, to run 1B1"));
  EXPECT_THAT(report, HasSubstr("worker 2 is in 2F1, a stand-in"));

  harness.fault.action.stage = -1;
  watchdog.seconds = 60;
  EXPECT_NO_THROW(harness.executor->run(harness.workers, Phase::kAll, release_the_last, watchdog));
}

TEST(Workers, RunAtTheSameTime) {
  Workers workers(3);
  std::atomic<int> arrived{0};
  workers.run(
      [&](int) {
        ++arrived;
        while (arrived < 3) std::this_thread::yield();  // ends only if all three run together
      },
      [] {});
  EXPECT_EQ(arrived, 3);
}

TEST(Workers, TheFirstErrorWins) {
  Workers workers(2);
  std::atomic<bool> cancelled{false};
  int num_cancels = 0;
  try {
    workers.run(
        [&](int worker) {
          if (worker == 1) throw std::runtime_error("first");
          while (!cancelled) std::this_thread::yield();
          throw std::runtime_error("second");
        },
        [&] {
          ++num_cancels;
          cancelled = true;
        });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(num_cancels, 1);
}

TEST(Channel, HoldsNoMoreThanItsCapacity) {
  Channel<int> channel(2);
  std::atomic<int> sent{0};
  std::thread sender([&] {
    for (int message = 0; message < 100; ++message) {
      channel.put(message);
      ++sent;
    }
  });
  for (int message = 0; message < 100; ++message) {
    EXPECT_EQ(channel.take(), message);
    EXPECT_LE(sent, message + 4);  // taken, two held, and one just put
  }
  sender.join();
}

TEST(Channel, CancelWakesAReceiverAndDropsWhatIsHeld) {
  Channel<int> channel(1);
  std::thread receiver([&] { EXPECT_THROW(channel.take(), CancelledError); });
  channel.cancel();
  receiver.join();
  EXPECT_THROW(channel.put(1), CancelledError);
  channel.reset();
  channel.put(7);
  EXPECT_EQ(channel.take(), 7);
}

TEST(Channel, CancelWakesASender) {
  Channel<int> channel(1);
  channel.put(1);
  std::thread sender([&] { EXPECT_THROW(channel.put(2), CancelledError); });
  channel.cancel();
  sender.join();
}

}  // namespace
}  // namespace gpipe::detail
