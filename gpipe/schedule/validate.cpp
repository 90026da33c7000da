#include "gpipe/schedule/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "gpipe/schedule/engine_proof.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe {
namespace {

using detail::check_no_deadlock;
using detail::check_structure;
using detail::deadlock_error;
using detail::free_capacities;
using detail::live_capacities;
using detail::ProvenSchedule;
using detail::Spectator;
using detail::survives_one_channel_per_pair;
using detail::survives_rendezvous;
using detail::TokenGame;
using detail::uniform_message_order;

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
  constexpr std::array<const char*, 5> kStateNames = {"before its forward", "after its forward", "after its recompute",
                                                      "after its input gradient", "after its backward"};
  return kStateNames.at(state);
}

// The state after `kind`; nothing if it may not come here.
std::optional<State> after(State state, ActionKind kind) {
  const auto next = [](bool is_allowed, State then) { return is_allowed ? std::optional(then) : std::nullopt; };
  const bool is_before_backward = state == kForwarded || state == kRecomputed;
  switch (kind) {
    case ActionKind::kForward:
      return next(state == kNew, kForwarded);
    case ActionKind::kRecompute:
      return next(state == kForwarded, kRecomputed);
    case ActionKind::kBackward:
      return next(is_before_backward, kDone);
    case ActionKind::kInputGrad:
      return next(is_before_backward, kInputGradDone);
    case ActionKind::kWeightGrad:
      return next(state == kInputGradDone, kDone);
    case ActionKind::kUpdate:  // of no micro-batch
      break;
  }
  return std::nullopt;
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
      if (action.kind == ActionKind::kUpdate) continue;
      State& state = states[static_cast<std::int64_t>(action.stage) * schedule.num_micro_batches + action.micro_batch];
      const std::optional<State> then = after(state, action.kind);
      if (!then) {
        fail(Rule::kCompleteness,
             fmt::format("{} (worker {}, action {}): {} of micro-batch {} on stage {} comes {}", to_string(action),
                         worker, index, name(action.kind), action.micro_batch, action.stage, describe(state)),
             {action});
      }
      state = *then;
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

// An update is the last action of its stage, and either all stages have one or none has.
void check_updates(const Schedule& schedule) {
  if (!schedule.has_updates()) return;
  std::vector<bool> is_updated(schedule.num_stages);
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (is_updated[action.stage]) {
        fail(Rule::kCompleteness,
             fmt::format("{} comes after the update of its stage, {}; an update stands once, behind all other actions "
                         "of its stage",
                         to_string(action), to_string(Action{ActionKind::kUpdate, action.stage, 0})),
             {action});
      }
      is_updated[action.stage] = action.kind == ActionKind::kUpdate;
    }
  }
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    if (is_updated[stage]) continue;
    const Action missing{ActionKind::kUpdate, stage, 0};
    fail(Rule::kCompleteness,
         fmt::format("{} is missing on worker {}: other stages are updated", to_string(missing),
                     schedule.worker_of_stage[stage]),
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

std::vector<std::int64_t> check_memory(const Schedule& schedule, const ValidateOptions& options) {
  if (options.stages.empty()) return {};
  if (static_cast<int>(options.stages.size()) != schedule.num_stages) {
    throw InvalidArgument(fmt::format("the schedule has {} stages, but bytes are given for {}", schedule.num_stages,
                                      options.stages.size()));
  }
  std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedule, options.stages);
  const std::vector<std::int64_t>& limits = options.memory_limit_bytes;
  if (limits.empty()) return peaks;
  if (limits.size() != peaks.size()) {
    throw InvalidArgument(
        fmt::format("the schedule has {} workers, but memory limits are given for {}", peaks.size(), limits.size()));
  }
  const auto excess = [&](std::size_t worker) { return peaks[worker] - limits[worker]; };
  std::size_t fullest = 0;
  for (std::size_t worker = 1; worker < peaks.size(); ++worker) {
    if (excess(worker) > excess(fullest)) fullest = worker;
  }
  if (excess(fullest) > 0) {
    throw ScheduleError(
        Rule::kMemory,
        fmt::format("{}: worker {} holds {} bytes at its peak, {} more than its limit of {}; more stages, "
                    "smaller micro-batches or recompute would help",
                    name(Rule::kMemory), fullest, peaks[fullest], excess(fullest), limits[fullest]),
        {});
  }
  return peaks;
}

// The first weight gradient that comes after a later micro-batch's; empty when there is none.
std::string why_not_canonical(const Schedule& schedule) {
  std::vector<Action> last(schedule.num_stages, Action{ActionKind::kForward, 0, -1});
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (!makes_weight_grad(action.kind)) continue;
      Action& before = last[action.stage];
      if (before.micro_batch > action.micro_batch) {
        return fmt::format("stage {} accumulates {} before {}", action.stage, to_string(before), to_string(action));
      }
      before = action;
    }
  }
  return "";
}

}  // namespace

void detail::check_structure(const Schedule& schedule) {
  check_placement(schedule);
  check_completeness(schedule);
  check_updates(schedule);
  check_same_order(order_by_stage(schedule, [](ActionKind kind) { return kind == ActionKind::kForward; }), true);
  if (schedule.has_backward()) check_same_order(order_by_stage(schedule, makes_input_grad), false);
}

void detail::check_no_deadlock(const Schedule& schedule, const FlowTable& table) {
  Spectator<> spectator;
  TokenGame<Spectator<>> game(schedule, table, {}, spectator);
  if (!game.run()) throw deadlock_error(schedule, table, game.standstill());
}

const char* name(Rule rule) {
  constexpr std::array<const char*, 5> kRuleNames = {
      "rule 1 (one F, then at most one R, then one B or one I and one W)", "rule 2 (each stage lives on one worker)",
      "rule 3 (a flow is received in the order it is sent)", "rule 3 (no deadlock)",
      "rule 5 (peak memory within the limit)"};
  return kRuleNames.at(static_cast<std::size_t>(rule));
}

Certificate validate(const Schedule& schedule, const ValidateOptions& options) {
  check_structure(schedule);
  const FlowTable table = make_flow_table(schedule, options.routes);
  check_no_deadlock(schedule, table);

  Certificate certificate;
  certificate.forward_only = !schedule.has_backward();
  certificate.peak_bytes = check_memory(schedule, options);
  certificate.peak_activations = peak_activations_by_worker(schedule);
  certificate.non_canonical_because = why_not_canonical(schedule);
  certificate.canonical = certificate.non_canonical_because.empty();
  certificate.rendezvous = survives_rendezvous(schedule, table);
  certificate.one_channel_per_pair = survives_one_channel_per_pair(schedule, table);
  certificate.one_engine = detail::survives_one_engine(schedule, table, uniform_message_order(schedule, table));
  if (!options.compute_capacities) return certificate;

  const std::vector<int> live = live_capacities(schedule, table);
  const std::optional<std::vector<int>> free = free_capacities(schedule, table);
  for (int flow = 0; flow < static_cast<int>(table.flows.size()); ++flow) {
    FlowCertificate entry;
    entry.flow = table.flows[flow];
    entry.is_local = table.is_local(flow);
    entry.live_capacity = live[flow];
    if (free) entry.free_capacity = (*free)[flow];
    certificate.flows.push_back(entry);
  }
  return certificate;
}

std::shared_ptr<const ProvenSchedule> detail::prove(Schedule schedule, const Routes& routes) {
  ValidateOptions options;
  options.routes = routes;
  auto proven = std::make_shared<ProvenSchedule>();
  for (const FlowCertificate& flow : validate(schedule, options).flows) {
    proven->capacities.push_back(flow.free_capacity.value_or(flow.live_capacity));
  }
  proven->table = make_flow_table(schedule, routes);
  proven->schedule = std::move(schedule);
  return proven;
}

}  // namespace gpipe
