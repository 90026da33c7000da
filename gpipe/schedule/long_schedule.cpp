#include "gpipe/schedule/long_schedule.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::detail {
namespace {

// With fewer actions than this, a schedule is written out: it is as fast, and its times are rounded as `simulate` does
// it.
constexpr double kFewActions = 20'000;

// Where all workers are, and the messages that wait, by stage.
struct Cut {
  std::vector<int> positions;
  std::vector<int> forwards;   // activations for the stage
  std::vector<int> gradients;  // gradients for it
  std::size_t end_of_order = 0;
};

// Goes through a schedule by need: an action runs once something behind it wants what it makes. So each worker is never
// further than it has to be.
class NeedOrder {
 public:
  explicit NeedOrder(const Schedule& schedule)
      : schedule_(schedule),
        at_{std::vector<int>(schedule.num_workers()), std::vector<int>(schedule.num_stages),
            std::vector<int>(schedule.num_stages)} {
    order_.reserve(static_cast<std::size_t>(schedule.num_actions()));
  }

  // The worker's actions in front of `index`, and all that they need. False if the schedule cannot run.
  bool play(int worker, int index) {
    std::vector<int> waiting;  // workers, each for the next one; a stack of our own, because there may be thousands
    while (at_.positions[worker] < index) {
      waiting.assign(1, worker);
      while (!waiting.empty()) {
        const std::vector<Action>& actions = schedule_.workers[waiting.back()];
        const int position = at_.positions[waiting.back()];
        if (position == static_cast<int>(actions.size())) return false;
        const std::optional<int> source = awaited_stage(actions[position]);
        if (source) {
          if (static_cast<int>(waiting.size()) > schedule_.num_workers()) return false;  // one waits for itself
          waiting.push_back(schedule_.worker_of_stage[*source]);
          continue;
        }
        run(actions[position]);
        order_.push_back({waiting.back(), at_.positions[waiting.back()]++});
        ++at_.end_of_order;
        waiting.pop_back();
      }
    }
    return true;
  }

  const Cut& at() const { return at_; }
  std::vector<LongSchedule::Step>& order() { return order_; }

 private:
  // Messages come in the order in which they are taken, because stages run their micro-batches in one order.
  bool takes_activation(const Action& action) const { return action.kind == ActionKind::kForward && action.stage > 0; }
  bool takes_gradient(const Action& action) const {
    return makes_input_grad(action.kind) && action.stage + 1 < schedule_.num_stages;
  }

  // The stage whose message has to come before the action can run; none if it is there.
  std::optional<int> awaited_stage(const Action& action) const {
    if (takes_activation(action) && at_.forwards[action.stage] == 0) return action.stage - 1;
    if (takes_gradient(action) && at_.gradients[action.stage] == 0) return action.stage + 1;
    return std::nullopt;
  }

  void run(const Action& action) {
    if (takes_activation(action)) --at_.forwards[action.stage];
    if (takes_gradient(action)) --at_.gradients[action.stage];
    const bool is_a_forward = action.kind == ActionKind::kForward;
    if (is_a_forward && action.stage + 1 < schedule_.num_stages) ++at_.forwards[action.stage + 1];
    if (makes_input_grad(action.kind) && action.stage > 0) ++at_.gradients[action.stage - 1];
  }

  const Schedule& schedule_;
  Cut at_;
  std::vector<LongSchedule::Step> order_;
};

// Of the action itself, or -1.
int index_of(const std::vector<Action>& actions, const Action& wanted) {
  const auto found = std::find(actions.begin(), actions.end(), wanted);
  return found == actions.end() ? -1 : static_cast<int>(found - actions.begin());
}

Action later(Action action, int micro_batches) {
  action.micro_batch += micro_batches;
  return action;
}

// The action of the first stage that every other action of its micro-batch leads to, or the last stage's if there are
// only forwards. It says how far the schedule has come.
Action milestone_of(const Schedule& schedule, int micro_batch) {
  if (!schedule.has_backward()) return {ActionKind::kForward, schedule.num_stages - 1, micro_batch};
  // A schedule may split some backwards only.
  const Action whole{ActionKind::kBackward, 0, micro_batch};
  const bool is_whole = index_of(schedule.workers[schedule.worker_of_stage[0]], whole) >= 0;
  return is_whole ? whole : Action{ActionKind::kInputGrad, 0, micro_batch};
}

bool is_same_state(const Cut& a, const Cut& b) { return a.forwards == b.forwards && a.gradients == b.gradients; }

// Whether every worker does the same between `a` and `b` as between `b` and `c`, a period later.
bool repeats(const Schedule& schedule, const std::array<Cut, 3>& cuts, int period) {
  const auto& [a, b, c] = cuts;
  if (!is_same_state(a, b) || !is_same_state(b, c)) return false;
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    const std::vector<Action>& actions = schedule.workers[worker];
    const int length = b.positions[worker] - a.positions[worker];
    if (length == 0 || c.positions[worker] - b.positions[worker] != length) return false;
    for (int index = a.positions[worker]; index < b.positions[worker]; ++index) {
      if (later(actions[index], period) != actions[index + length]) return false;
    }
  }
  return true;
}

// By stage and kind.
using Counts = std::vector<std::array<std::int64_t, kNumActionKinds>>;

std::int64_t& count_of(Counts& counts, const Action& action) {
  return counts[action.stage][static_cast<std::size_t>(action.kind)];
}

// Of the actions of one round of each phase.
Counts count_rounds(const LongSchedule& schedule) {
  Counts counts(schedule.num_stages());
  for (const LongSchedule::Round& round : schedule.rounds) {
    for (int worker = 0; worker < schedule.num_workers(); ++worker) {
      for (int index = round.worker_begin[worker]; index < round.worker_end[worker]; ++index) {
        ++count_of(counts, schedule.action({worker, index}));
      }
    }
  }
  return counts;
}

// Together, the rounds of all phases have every action once for each micro-batch of the period. Recomputes are there
// for all, for none, or for those whose backward does not stand right behind its forward.
bool are_complete(const LongSchedule& schedule) {
  const std::int64_t period = schedule.period;
  const std::int64_t num_backwards = schedule.written.has_backward() ? period : 0;
  for (const auto& [forwards, recomputes, backwards, input_grads, weight_grads, updates] : count_rounds(schedule)) {
    if (forwards != period || recomputes > period || updates != 0) return false;
    if (backwards + input_grads != num_backwards || input_grads != weight_grads) return false;
  }
  return true;
}

// Plays up to three cuts, a period apart, around the milestone, and adds the round between the first two. False if
// there is none.
bool add_round(LongSchedule& schedule, NeedOrder& order) {
  const Schedule& written = schedule.written;
  const Action milestone = milestone_of(written, written.num_micro_batches / 2);
  const int worker = written.worker_of_stage[milestone.stage];
  std::array<Cut, 3> cuts;
  for (int number = 0; number < 3; ++number) {
    const int index = index_of(written.workers[worker], later(milestone, (number - 1) * schedule.period));
    if (index < 0 || !order.play(worker, index + 1)) return false;
    cuts[number] = order.at();
  }
  if (!repeats(written, cuts, schedule.period)) return false;
  schedule.rounds.push_back(
      {cuts[0].end_of_order, cuts[1].end_of_order, std::move(cuts[0].positions), std::move(cuts[1].positions)});
  return true;
}

// Where the actions of each micro-batch begin, in a list that goes through the micro-batches from the first to the last
// and may do so several times: by phase, then by micro-batch, and the end. Nothing if the list is not like that.
std::vector<std::vector<int>> phases_of(const std::vector<Action>& actions, int num_micro_batches) {
  std::vector<std::vector<int>> phases;
  int micro_batch = num_micro_batches - 1;
  for (int index = 0; index < static_cast<int>(actions.size()); ++index) {
    if (actions[index].micro_batch == micro_batch) continue;
    if (micro_batch == num_micro_batches - 1) phases.emplace_back();
    micro_batch = (micro_batch + 1) % num_micro_batches;
    if (actions[index].micro_batch != micro_batch) return {};
    phases.back().push_back(index);
  }
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    if (static_cast<int>(phases[phase].size()) != num_micro_batches) return {};
    phases[phase].push_back(phase + 1 < phases.size() ? phases[phase + 1].front() : static_cast<int>(actions.size()));
  }
  return phases;
}

// Whether all micro-batches of a phase but the first and the last have the same actions.
bool is_regular(const std::vector<Action>& actions, const std::vector<int>& begins) {
  const int length = begins[2] - begins[1];
  for (std::size_t micro_batch = 2; micro_batch + 2 < begins.size(); ++micro_batch) {
    if (begins[micro_batch + 1] - begins[micro_batch] != length) return false;
    for (int index = begins[micro_batch]; index < begins[micro_batch + 1]; ++index) {
      if (actions[index] != later(actions[index - length], 1)) return false;
    }
  }
  return true;
}

// Adds a round for each phase, that of a micro-batch in the middle. False if a worker's list does not consist of
// phases, or another worker's of as many.
bool add_phases(LongSchedule& schedule) {
  const Schedule& written = schedule.written;
  const int middle = written.num_micro_batches / 2;
  for (int worker = 0; worker < written.num_workers(); ++worker) {
    const std::vector<Action>& actions = written.workers[worker];
    const std::vector<std::vector<int>> phases = phases_of(actions, written.num_micro_batches);
    if (worker == 0) schedule.rounds.resize(phases.size());
    if (phases.empty() || phases.size() != schedule.rounds.size()) return false;
    for (std::size_t phase = 0; phase < phases.size(); ++phase) {
      if (!is_regular(actions, phases[phase])) return false;
      schedule.rounds[phase].worker_begin.push_back(phases[phase][middle]);
      schedule.rounds[phase].worker_end.push_back(phases[phase][middle + 1]);
    }
  }
  schedule.is_in_phases = true;
  return true;
}

// Fills the order and, if something is added, the rounds. False if there are none, or if the schedule cannot run.
bool find_order(LongSchedule& schedule) {
  const Schedule& written = schedule.written;
  NeedOrder order(written);
  schedule.is_in_phases = false;
  if (schedule.num_added_rounds > 0 && !(schedule.period == 1 && add_phases(schedule))) {
    schedule.rounds.clear();
    if (!add_round(schedule, order)) return false;
  }
  for (int worker = 0; worker < written.num_workers(); ++worker) {
    if (!order.play(worker, static_cast<int>(written.workers[worker].size()))) return false;
  }
  schedule.order = std::move(order.order());
  schedule.is_recomputed = recomputed(written);
  return schedule.num_added_rounds == 0 || are_complete(schedule);
}

LongSchedule with_written(const LongSchedule& schedule, Schedule written) {
  LongSchedule result;
  result.written = std::move(written);
  result.num_micro_batches = schedule.num_micro_batches;
  result.period = schedule.period;
  result.num_added_rounds = schedule.num_added_rounds;
  if (!find_order(result)) throw Error(result.written.name + ": a schedule that recomputes cannot run; a defect");
  return result;
}

}  // namespace

LongSchedule make_long_schedule(std::string_view name, int num_workers, int num_micro_batches, int chunks) {
  const int num_chunks = chunks == 0 ? find_schedule(name).default_chunks : chunks;
  const double num_actions = 2.0 * num_workers * num_chunks * num_micro_batches;
  LongSchedule result;
  result.num_micro_batches = num_micro_batches;
  for (const int period : {1, num_workers}) {
    // Long enough for the start, for three rounds in the middle and for the end.
    const double least = 4.0 * num_workers + 8.0 * period + 8;
    if (num_workers < 1 || num_actions < kFewActions || num_micro_batches < 2 * least) break;
    const int first = static_cast<int>(least);
    const int few = first + (num_micro_batches - first) % period;
    result.written = make_schedule(name, num_workers, few, chunks);
    result.period = period;
    result.num_added_rounds = (num_micro_batches - few) / period;
    if (find_order(result)) return result;
  }
  result.written = make_schedule(name, num_workers, num_micro_batches, chunks);
  result.period = 0;
  result.num_added_rounds = 0;
  result.rounds.clear();
  if (!find_order(result)) throw Error(result.written.name + ": the schedule cannot run; a defect");
  return result;
}

LongSchedule written_out(Schedule schedule) {
  check_structure(schedule);
  LongSchedule result;
  result.written = without_updates(std::move(schedule));
  result.num_micro_batches = result.written.num_micro_batches;
  if (!find_order(result)) {
    ValidateOptions prove_only;
    prove_only.compute_capacities = false;
    validate(result.written, prove_only);  // says why
  }
  return result;
}

LongSchedule with_recompute(const LongSchedule& schedule, Recompute mode) {
  return with_written(schedule, with_recompute(schedule.written, mode));
}

LongSchedule with_recompute(const LongSchedule& schedule, const std::vector<Recompute>& by_stage) {
  return with_written(schedule, with_recompute(schedule.written, by_stage));
}

std::vector<double> recompute_share(const LongSchedule& schedule) {
  Counts counts(schedule.num_stages());
  for (const std::vector<Action>& actions : schedule.written.workers) {
    for (const Action& action : actions) ++count_of(counts, action);
  }
  Counts added = count_rounds(schedule);
  std::vector<double> share;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const Action recompute{ActionKind::kRecompute, stage, 0};
    const std::int64_t count = count_of(counts, recompute) + schedule.num_added_rounds * count_of(added, recompute);
    share.push_back(static_cast<double>(count) / static_cast<double>(schedule.num_micro_batches));
  }
  return share;
}

}  // namespace gpipe::detail
