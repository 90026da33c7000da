// Mutation: no single edit of a valid schedule slips through the proof to a deadlock or a wrong count.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/simulate/simulate.h"
#include "tests/schedule/schedules.h"

namespace gpipe {
namespace {

using Key = std::tuple<ActionKind, int, int>;

// A second opinion, written without the library's machinery: sets of finished actions, no channels.
class Oracle {
 public:
  explicit Oracle(const Schedule& schedule) : schedule_(schedule) {}

  bool is_complete() const {
    std::map<Key, int> count;
    bool backward = false;
    for (const auto& actions : schedule_.workers) {
      for (const Action& action : actions) {
        ++count[{action.kind, action.stage, action.micro_batch}];
        backward |= action.kind != ActionKind::kForward;
      }
    }
    for (const auto& [key, times] : count) {
      if (times != 1) return false;
    }
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      for (int m = 0; m < schedule_.num_micro_batches; ++m) {
        const auto has = [&](ActionKind kind) { return count.count({kind, stage, m}) != 0; };
        const bool fused = has(ActionKind::kBackward);
        const bool split = has(ActionKind::kInputGrad) && has(ActionKind::kWeightGrad);
        const bool half = has(ActionKind::kInputGrad) != has(ActionKind::kWeightGrad);
        if (!has(ActionKind::kForward) || half || (fused && split) || (backward && !fused && !split)) return false;
      }
    }
    return true;
  }

  bool is_placed_once() const {
    std::map<int, std::set<int>> workers;
    for (int worker = 0; worker < schedule_.num_workers(); ++worker) {
      if (schedule_.workers[worker].empty()) return false;
      for (const Action& action : schedule_.workers[worker]) workers[action.stage].insert(worker);
    }
    for (const auto& [stage, on] : workers) {
      if (on.size() != 1) return false;
    }
    return true;
  }

  // Runs every worker as far as finished actions allow, until nothing moves.
  bool runs_to_its_end() const {
    std::set<Key> done;
    std::vector<std::size_t> next(schedule_.num_workers(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int worker = 0; worker < schedule_.num_workers(); ++worker) {
        const auto& actions = schedule_.workers[worker];
        while (next[worker] < actions.size() && may_run(actions[next[worker]], done)) {
          const Action& action = actions[next[worker]++];
          done.insert({action.kind, action.stage, action.micro_batch});
          moved = true;
        }
      }
    }
    for (int worker = 0; worker < schedule_.num_workers(); ++worker) {
      if (next[worker] != schedule_.workers[worker].size()) return false;
    }
    return true;
  }

 private:
  static bool backward_done(const std::set<Key>& done, int stage, int m) {
    return done.count({ActionKind::kBackward, stage, m}) || done.count({ActionKind::kInputGrad, stage, m});
  }

  bool may_run(const Action& action, const std::set<Key>& done) const {
    const int stage = action.stage;
    const int m = action.micro_batch;
    const bool forward_done = done.count({ActionKind::kForward, stage, m}) != 0;
    switch (action.kind) {
      case ActionKind::kForward:
        return stage == 0 || done.count({ActionKind::kForward, stage - 1, m});
      case ActionKind::kRecompute:
        return forward_done && !backward_done(done, stage, m);
      case ActionKind::kBackward:
      case ActionKind::kInputGrad:
        return forward_done && (stage == schedule_.num_stages - 1 || backward_done(done, stage + 1, m));
      case ActionKind::kWeightGrad:
        return done.count({ActionKind::kInputGrad, stage, m}) != 0;
      case ActionKind::kUpdate:
        return false;  // there is none in these schedules
    }
    return false;
  }

  const Schedule& schedule_;
};

struct Tally {
  int refused = 0;
  int still_valid = 0;
};

// Either the proof refuses the mutant, and the oracle agrees unless the reason is the order of a channel; or it runs.
void check(const Schedule& mutant, Tally& tally) {
  SCOPED_TRACE("\n" + to_csv(mutant));
  const Oracle oracle(mutant);
  const bool right = oracle.is_complete() && oracle.is_placed_once() && oracle.runs_to_its_end();
  Certificate certificate;
  try {
    certificate = validate(mutant);
  } catch (const ScheduleError& error) {
    ++tally.refused;
    EXPECT_TRUE(!right || error.rule() == Rule::kChannelOrder) << error.what();
    EXPECT_THROW(simulate(mutant, Costs{std::vector<StageCosts>(mutant.num_stages), {}, {}, {}, {}, {}}),
                 ScheduleError);
    return;
  }
  ++tally.still_valid;
  EXPECT_TRUE(right);
  SimulateOptions options;
  for (const FlowCertificate& flow : certificate.flows) options.capacities.push_back(flow.live_capacity);
  const Timeline timeline = simulate(mutant, uniform_costs(mutant), options);
  std::size_t num_spans = 0;
  for (const WorkerTimeline& worker : timeline.workers) num_spans += worker.spans.size();
  EXPECT_EQ(num_spans, static_cast<std::size_t>(mutant.num_actions()));
}

// Mutants are made as a file would be: the counts and the placement follow from the actions. A negative number cannot
// be written in a file.
void check(std::vector<std::vector<Action>> workers, Tally& tally) {
  for (const auto& actions : workers) {
    for (const Action& action : actions) {
      if (action.stage < 0 || action.micro_batch < 0) return;
    }
  }
  check(schedule_from_actions(std::move(workers)), tally);
}

void mutate(const Schedule& schedule, Tally& tally) {
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    const std::size_t size = schedule.workers[worker].size();
    for (std::size_t index = 0; index < size; ++index) {
      auto dropped = schedule.workers;
      dropped[worker].erase(dropped[worker].begin() + static_cast<std::ptrdiff_t>(index));
      check(dropped, tally);

      auto moved = dropped;
      moved[(worker + 1) % schedule.num_workers()].push_back(schedule.workers[worker][index]);
      if (schedule.num_workers() > 1) check(moved, tally);

      auto repeated = schedule.workers;
      repeated[worker].push_back(schedule.workers[worker][index]);
      check(repeated, tally);

      for (std::size_t other = index + 1; other < size; ++other) {
        auto swapped = schedule.workers;
        std::swap(swapped[worker][index], swapped[worker][other]);
        check(swapped, tally);
      }
      for (const int change : {-1, 1, 100}) {
        auto stage = schedule.workers;
        stage[worker][index].stage += change;
        check(stage, tally);
        auto micro_batch = schedule.workers;
        micro_batch[worker][index].micro_batch += change;
        check(micro_batch, tally);
      }
      for (const ActionKind kind : {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward,
                                    ActionKind::kInputGrad, ActionKind::kWeightGrad}) {
        if (kind == schedule.workers[worker][index].kind) continue;
        auto other_kind = schedule.workers;
        other_kind[worker][index].kind = kind;
        check(other_kind, tally);
      }
    }
  }
}

TEST(Mutation, NoEditOfAValidScheduleSlipsThrough) {
  Tally tally;
  for (int k = 1; k <= 3; ++k) {
    for (const Recompute mode : {Recompute::kNever, Recompute::kAlways}) {
      test::for_each_schedule(k, 4, 2, [&](const Schedule& schedule, const std::string& description) {
        SCOPED_TRACE(description);
        mutate(with_recompute(schedule, mode), tally);
      });
    }
  }
  // Both outcomes must have been met: swaps of independent actions stay valid, most edits do not.
  EXPECT_GT(tally.still_valid, 100);
  EXPECT_GT(tally.refused, 10000);
  RecordProperty("refused", tally.refused);
  RecordProperty("still_valid", tally.still_valid);
}

}  // namespace
}  // namespace gpipe
