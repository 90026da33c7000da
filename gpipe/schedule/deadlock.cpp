#include "gpipe/schedule/deadlock.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpipe {
namespace {

bool takes(const Action& action, const Flow& flow) {
  if (action.stage != flow.destination) return false;
  const bool forward = flow.kind == FlowKind::kActivation || flow.kind == FlowKind::kSkip;
  const bool backward = flow.kind == FlowKind::kGradient || flow.kind == FlowKind::kSkipGradient;
  return (forward && action.kind == ActionKind::kForward) || (backward && makes_input_grad(action.kind));
}

bool puts(const Action& action, const Flow& flow, int micro_batch) {
  if (action.stage != flow.source) return false;
  if (flow.kind == FlowKind::kTie) return makes_weight_grad(action.kind);
  const bool forward = flow.kind == FlowKind::kActivation || flow.kind == FlowKind::kSkip;
  return action.micro_batch == micro_batch &&
         (forward ? action.kind == ActionKind::kForward : makes_input_grad(action.kind));
}

// Where, from `position` on, the worker on the other end does what the waiting action needs.
int find_provider(const Schedule& schedule, const FlowTable& table, const Wait& wait, int position, int micro_batch) {
  const Flow& flow = table.flows[wait.flow];
  const bool message = wait.kind == Wait::Kind::kMessage;
  const auto& actions =
      schedule.workers[message ? table.source_worker[wait.flow] : table.destination_worker[wait.flow]];
  const int size = static_cast<int>(actions.size());
  int found = size;
  for (int index = position; index < size; ++index) {
    if (message ? puts(actions[index], flow, micro_batch) : takes(actions[index], flow)) {
      found = index;
      if (flow.kind != FlowKind::kTie) break;  // a tied gradient is put by the last one
    }
  }
  return found;
}

std::string wait_line(const std::string& who, const std::string& provider, const Flow& flow, Wait::Kind kind,
                      bool rendezvous) {
  if (kind == Wait::Kind::kMessage) return fmt::format("{} waits for {}, from {}", who, to_string(flow), provider);
  if (rendezvous) return fmt::format("{} waits for {} to receive {}", who, provider, to_string(flow));
  return fmt::format("{} waits for room in {}, until {} takes a message", who, to_string(flow), provider);
}

}  // namespace

std::string name_at(const Schedule& schedule, int worker, int index) {
  const auto& actions = schedule.workers[worker];
  return index < static_cast<int>(actions.size()) ? to_string(actions[index]) : "the end of the step";
}

std::vector<int> cycle_of_workers(const FlowTable& table, const Standstill& standstill) {
  const auto next = [&](int worker) {
    const Wait& wait = standstill.waits[worker];
    return wait.kind == Wait::Kind::kMessage ? table.source_worker[wait.flow] : table.destination_worker[wait.flow];
  };
  int worker = 0;
  while (standstill.waits[worker].kind == Wait::Kind::kNothing) ++worker;
  // Every waiting worker waits for one that waits, too: after as many steps as there are workers we are on the cycle.
  for (std::size_t step = 0; step < standstill.waits.size(); ++step) worker = next(worker);
  std::vector<int> workers = {worker};
  for (int other = next(worker); other != worker; other = next(other)) workers.push_back(other);
  return workers;
}

Cycle find_cycle(const Schedule& schedule, const FlowTable& table, const Standstill& standstill, bool rendezvous) {
  Cycle cycle;
  const std::vector<int> workers = cycle_of_workers(table, standstill);
  for (std::size_t at = 0; at < workers.size(); ++at) {
    const int worker = workers[at];
    const int next = workers[(at + 1) % workers.size()];
    const Wait& wait = standstill.waits[worker];
    const int index = standstill.positions[worker];
    const auto& actions = schedule.workers[worker];
    const bool at_end = index == static_cast<int>(actions.size());
    const int provider =
        find_provider(schedule, table, wait, standstill.positions[next], at_end ? 0 : actions[index].micro_batch);
    if (!at_end) cycle.actions.push_back(actions[index]);
    cycle.edges.push_back(wait_line(fmt::format("worker {}: {}", worker, name_at(schedule, worker, index)),
                                    name_at(schedule, next, provider), table.flows[wait.flow], wait.kind, rendezvous));
    if (provider != standstill.positions[next]) {
      cycle.edges.push_back(fmt::format("worker {}: {} comes after {}", next, name_at(schedule, next, provider),
                                        name_at(schedule, next, standstill.positions[next])));
    }
  }
  return cycle;
}

ScheduleError deadlock_error(const Schedule& schedule, const FlowTable& table, const Standstill& standstill) {
  Cycle cycle = find_cycle(schedule, table, standstill);
  const std::string what =
      fmt::format("{}: these wait for each other:\n  {}", name(Rule::kDeadlock), fmt::join(cycle.edges, "\n  "));
  return ScheduleError(Rule::kDeadlock, what, std::move(cycle.actions), std::move(cycle.edges));
}

}  // namespace gpipe
