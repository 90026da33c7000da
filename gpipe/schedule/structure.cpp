#include "gpipe/schedule/structure.h"

#include <fmt/format.h>

#include <unordered_set>

#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

[[noreturn]] void fail(Rule rule, const std::string& what, std::vector<Action> actions) {
  throw ScheduleError(rule, fmt::format("{}: {}", name(rule), what), std::move(actions));
}

void check_placement(const Schedule& schedule) {
  if (schedule.num_workers() == 0 || schedule.num_stages < 1 || schedule.num_micro_batches < 1) {
    fail(Rule::kCompleteness, "the schedule has no actions", {});
  }
  if (static_cast<int>(schedule.worker_of_stage.size()) != schedule.num_stages) {
    fail(Rule::kPlacement,
         fmt::format("{} stages, but a worker is given for {}", schedule.num_stages, schedule.worker_of_stage.size()),
         {});
  }
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    if (schedule.workers[worker].empty()) fail(Rule::kPlacement, fmt::format("worker {} has no actions", worker), {});
    for (const Action& action : schedule.workers[worker]) {
      if (action.stage < 0 || action.stage >= schedule.num_stages || action.micro_batch < 0 ||
          action.micro_batch >= schedule.num_micro_batches) {
        fail(Rule::kCompleteness,
             fmt::format("{} on worker {} is outside the schedule's {} stages and {} micro-batches", to_string(action),
                         worker, schedule.num_stages, schedule.num_micro_batches),
             {action});
      }
      const int owner = schedule.worker_of_stage[action.stage];
      if (owner != worker) {
        fail(Rule::kPlacement,
             fmt::format("{} is on worker {}, but stage {} lives on worker {}", to_string(action), worker, action.stage,
                         owner),
             {action});
      }
    }
  }
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const int owner = schedule.worker_of_stage[stage];
    if (owner < 0 || owner >= schedule.num_workers()) {
      fail(Rule::kPlacement, fmt::format("stage {} lives on no worker", stage), {});
    }
  }
}

// There are fewer actions than (stage, micro-batch) pairs, so some pair has no forward: find the first without a table.
[[noreturn]] void fail_missing_forward(const Schedule& schedule) {
  std::vector<std::unordered_set<int>> forwards(schedule.num_stages);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kForward) forwards[action.stage].insert(action.micro_batch);
    }
  }
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.num_micro_batches; ++micro_batch) {
      if (forwards[stage].count(micro_batch)) continue;
      const Action missing{ActionKind::kForward, stage, micro_batch};
      fail(Rule::kCompleteness,
           fmt::format("{} is missing ({} stages and {} micro-batches are named)", to_string(missing),
                       schedule.num_stages, schedule.num_micro_batches),
           {missing});
    }
  }
  fail(Rule::kCompleteness, "actions are missing", {});
}

// How far one (stage, micro-batch) has come.
enum State : std::uint8_t { kNew, kForwarded, kRecomputed, kInputGradDone, kDone };

const char* describe(State state) {
  switch (state) {
    case kNew:
      return "before its forward";
    case kForwarded:
      return "after its forward";
    case kRecomputed:
      return "after its recompute";
    case kInputGradDone:
      return "after its input gradient";
    case kDone:
      return "after its backward";
  }
  return "";
}

// The state after `kind`, or false if it may not come here.
bool step(State& state, ActionKind kind) {
  const bool before_backward = state == kForwarded || state == kRecomputed;
  switch (kind) {
    case ActionKind::kForward:
      if (state != kNew) return false;
      state = kForwarded;
      return true;
    case ActionKind::kRecompute:
      if (state != kForwarded) return false;
      state = kRecomputed;
      return true;
    case ActionKind::kBackward:
      if (!before_backward) return false;
      state = kDone;
      return true;
    case ActionKind::kInputGrad:
      if (!before_backward) return false;
      state = kInputGradDone;
      return true;
    case ActionKind::kWeightGrad:
      if (state != kInputGradDone) return false;
      state = kDone;
      return true;
  }
  return false;
}

ActionKind what_is_missing(State state) {
  if (state == kNew) return ActionKind::kForward;
  return state == kInputGradDone ? ActionKind::kWeightGrad : ActionKind::kBackward;
}

void check_completeness(const Schedule& schedule) {
  const std::int64_t pairs = static_cast<std::int64_t>(schedule.num_stages) * schedule.num_micro_batches;
  if (pairs > schedule.num_actions()) fail_missing_forward(schedule);
  std::vector<State> states(pairs, kNew);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    const auto& actions = schedule.workers[worker];
    for (std::size_t index = 0; index < actions.size(); ++index) {
      const Action& action = actions[index];
      State& state = states[static_cast<std::int64_t>(action.stage) * schedule.num_micro_batches + action.micro_batch];
      const State before = state;
      if (!step(state, action.kind)) {
        fail(Rule::kCompleteness,
             fmt::format("{} (worker {}, action {}): {} of micro-batch {} on stage {} comes {}", to_string(action),
                         worker, index, name(action.kind), action.micro_batch, action.stage, describe(before)),
             {action});
      }
    }
  }
  const State wanted = schedule.has_backward() ? kDone : kForwarded;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    if (states[pair] == wanted) continue;
    const Action missing{what_is_missing(states[pair]), static_cast<int>(pair / schedule.num_micro_batches),
                         static_cast<int>(pair % schedule.num_micro_batches)};
    fail(Rule::kCompleteness,
         fmt::format("{} is missing on worker {}", to_string(missing), schedule.worker_of_stage[missing.stage]),
         {missing});
  }
}

// The micro-batches of each stage in program order, for the actions that `selects`.
template <typename Selects>
std::vector<std::vector<Action>> order_by_stage(const Schedule& schedule, const Selects& selects) {
  std::vector<std::vector<Action>> order(schedule.num_stages);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (selects(action.kind)) order[action.stage].push_back(action);
    }
  }
  return order;
}

// A flow is an ordered channel, so neighbours along the chain must agree on the order of the micro-batches.
void check_same_order(const std::vector<std::vector<Action>>& order, bool forward) {
  for (std::size_t stage = 1; stage < order.size(); ++stage) {
    const auto& sent = forward ? order[stage - 1] : order[stage];
    const auto& received = forward ? order[stage] : order[stage - 1];
    for (std::size_t index = 0; index < sent.size(); ++index) {
      if (sent[index].micro_batch == received[index].micro_batch) continue;
      const Flow flow{forward ? FlowKind::kActivation : FlowKind::kGradient, sent[index].stage, received[index].stage};
      fail(Rule::kChannelOrder,
           fmt::format("message {} of {} is sent by {} but would be received by {}", index, to_string(flow),
                       to_string(sent[index]), to_string(received[index])),
           {sent[index], received[index]});
    }
  }
}

}  // namespace

void check_structure(const Schedule& schedule) {
  check_placement(schedule);
  check_completeness(schedule);
  check_same_order(order_by_stage(schedule, [](ActionKind kind) { return kind == ActionKind::kForward; }), true);
  if (schedule.has_backward()) check_same_order(order_by_stage(schedule, makes_input_grad), false);
}

}  // namespace gpipe
