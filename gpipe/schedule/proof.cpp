#include "gpipe/schedule/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <utility>

namespace gpipe::detail {
namespace {

bool contains(const std::vector<int>& flows, int flow) {
  return std::find(flows.begin(), flows.end(), flow) != flows.end();
}

int worker_at_other_end(const FlowTable& table, const Wait& wait) {
  return wait.kind == Wait::Kind::kMessage ? table.source_worker[wait.flow] : table.destination_worker[wait.flow];
}

// Where, from `position` on, the worker on the other end does what the waiting action needs.
int find_provider(const Schedule& schedule, const FlowTable& table, const Wait& wait, int position, int micro_batch) {
  const Flow& flow = table.flows[wait.flow];
  const bool is_tie = flow.kind == FlowKind::kTie;
  const auto provides = [&](const Action& action) {
    if (wait.kind != Wait::Kind::kMessage) return contains(table.inputs(action), wait.flow);
    if (is_tie) return action.stage == flow.source && makes_weight_grad(action.kind);
    return action.micro_batch == micro_batch && contains(table.outputs(action), wait.flow);
  };
  const auto& actions = schedule.workers[worker_at_other_end(table, wait)];
  const int size = static_cast<int>(actions.size());
  int found = size;
  for (int index = position; index < size; ++index) {
    if (!provides(actions[index])) continue;
    found = index;
    if (!is_tie) break;  // a tied gradient is put by the last one
  }
  return found;
}

std::string wait_line(const std::string& who, const std::string& provider, const Flow& flow, Wait::Kind kind,
                      bool rendezvous) {
  if (kind == Wait::Kind::kMessage) return fmt::format("{} waits for {}, from {}", who, to_string(flow), provider);
  if (rendezvous) return fmt::format("{} waits for {} to receive {}", who, provider, to_string(flow));
  return fmt::format("{} waits for room in {}, until {} takes a message", who, to_string(flow), provider);
}

struct Cycle {
  std::vector<Action> actions;     // that wait
  std::vector<std::string> edges;  // one line each: an action and what it waits for
};

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

// Runs the schedule and records, for every flow, the actions that sent and that received its messages.
class Recorder : public Spectator<> {
 public:
  explicit Recorder(std::size_t num_flows, int num_workers)
      : sent(num_flows), received(num_workers), at_(num_workers, 0) {}
  void take(int worker, int flow, const Token&) { received[worker].push_back({flow, at_[worker]}); }
  Token put(int worker, int flow) {
    sent[flow].push_back(at_[worker]);
    return {};
  }
  void end(int worker, int index) { at_[worker] = index + 1; }

  struct Receive {
    int flow;
    int index;  // of the action that takes it; the size of the list at the end of the step
  };
  std::vector<std::vector<int>> sent;          // by flow: indices of the sending actions
  std::vector<std::vector<Receive>> received;  // by worker, in program order

 private:
  std::vector<int> at_;  // per worker: the action it is at
};

// Counts what every flow holds at most.
class Occupancy : public Spectator<> {
 public:
  explicit Occupancy(std::size_t num_flows) : held_(num_flows, 0), peak_(num_flows, 0) {}
  void take(int, int flow, const Token&) { --held_[flow]; }
  Token put(int, int flow) {
    peak_[flow] = std::max(peak_[flow], ++held_[flow]);
    return {};
  }
  int peak(int flow) const { return peak_[flow]; }

 private:
  std::vector<int> held_;
  std::vector<int> peak_;
};

bool is_live(const Schedule& schedule, const FlowTable& table, const std::vector<int>& capacities) {
  Spectator<> spectator;
  return TokenGame<Spectator<>>(schedule, table, {capacities, false}, spectator).run();
}

// The least capacity of one flow that is live beside the others.
int lower(const Schedule& schedule, const FlowTable& table, std::vector<int> capacities, int flow) {
  int dead = 0;
  int live = capacities[flow];
  while (live - dead > 1) {
    capacities[flow] = dead + (live - dead) / 2;
    (is_live(schedule, table, capacities) ? live : dead) = capacities[flow];
  }
  return live;
}

// Among the flows that a worker of the deadlock's cycle waits for room in.
int smallest_full_flow(const FlowTable& table, const Standstill& standstill, const std::vector<int>& capacities) {
  int smallest = -1;
  for (const int worker : cycle_of_workers(table, standstill)) {
    const Wait& wait = standstill.waits[worker];
    if (wait.kind != Wait::Kind::kSlot) continue;
    if (smallest < 0 || capacities[wait.flow] < capacities[smallest]) smallest = wait.flow;
  }
  return smallest;
}

// Note [What a sender knows]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// A flow of capacity C makes the sender of message i wait until the receiver has started on message i - C. That costs
// nothing, whatever the actions take, exactly if the other dependencies say so already. So we play the game on
// unbounded flows and let every worker carry, for each flow, the number of messages the receiver is known to have
// started on; knowledge travels with the messages. The largest number sent beyond what the sender knows is the
// capacity.
//
// A token carries the knowledge of kLanes flows; the game is played once for each group of them.
constexpr int kLanes = 16;

class Knowledge : public Spectator<std::array<int, kLanes>> {
 public:
  Knowledge(const Schedule& schedule, const FlowTable& table, int first_flow)
      : first_flow_(first_flow),
        num_flows_(std::min<int>(kLanes, static_cast<int>(table.flows.size()) - first_flow)),
        known_(schedule.num_workers(), Token{}) {}

  void take(int worker, int flow, const Token& token) {
    Token& known = known_[worker];
    for (int lane = 0; lane < kLanes; ++lane) known[lane] = std::max(known[lane], token[lane]);
    if (in_group(flow)) known[flow - first_flow_] = ++received_[flow - first_flow_];
  }
  Token put(int worker, int flow) {
    if (in_group(flow)) {
      const int lane = flow - first_flow_;
      needed_[lane] = std::max(needed_[lane], ++sent_[lane] - known_[worker][lane]);
    }
    return known_[worker];
  }

  int num_flows() const { return num_flows_; }
  int needed(int lane) const { return needed_[lane]; }

 private:
  bool in_group(int flow) const { return flow >= first_flow_ && flow < first_flow_ + num_flows_; }

  const int first_flow_;
  const int num_flows_;
  std::vector<Token> known_;  // per worker
  Token received_{};
  Token sent_{};
  Token needed_{};
};

constexpr double kMaxFreeCapacityWork = 5e8;  // actions x flows: a second or two
constexpr double kMaxLowerWork = 3e7;         // actions x flows: some seconds

}  // namespace

std::string name_at(const Schedule& schedule, int worker, int index) {
  const auto& actions = schedule.workers[worker];
  return index < static_cast<int>(actions.size()) ? to_string(actions[index]) : "the end of the step";
}

std::vector<int> cycle_of_workers(const FlowTable& table, const Standstill& standstill) {
  const auto next = [&](int worker) { return worker_at_other_end(table, standstill.waits[worker]); };
  int worker = 0;
  while (standstill.waits[worker].kind == Wait::Kind::kNothing) ++worker;
  // Every waiting worker waits for one that waits, too: after as many steps as there are workers we are on the cycle.
  for (std::size_t step = 0; step < standstill.waits.size(); ++step) worker = next(worker);
  std::vector<int> workers = {worker};
  for (int other = next(worker); other != worker; other = next(other)) workers.push_back(other);
  return workers;
}

ScheduleError deadlock_error(const Schedule& schedule, const FlowTable& table, const Standstill& standstill) {
  Cycle cycle = find_cycle(schedule, table, standstill, /*rendezvous=*/false);
  const std::string what =
      fmt::format("{}: these wait for each other:\n  {}", name(Rule::kDeadlock), fmt::join(cycle.edges, "\n  "));
  return ScheduleError(Rule::kDeadlock, what, std::move(cycle.actions), std::move(cycle.edges));
}

Survival survives_rendezvous(const Schedule& schedule, const FlowTable& table) {
  Spectator<> spectator;
  TokenGame<Spectator<>> game(schedule, table, {{}, true}, spectator);
  if (game.run()) return {};
  return {false, find_cycle(schedule, table, game.standstill(), true).edges};
}

Survival survives_one_channel_per_pair(const Schedule& schedule, const FlowTable& table) {
  Recorder recorder(table.flows.size(), schedule.num_workers());
  TokenGame<Recorder>(schedule, table, {}, recorder).run();
  std::vector<std::size_t> next(table.flows.size(), 0);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    // A shared channel delivers in the order of the sending worker's program: receives must not turn it around.
    struct Last {
      int sent = -1;
      Recorder::Receive receive{};
    };
    std::unordered_map<int, Last> last_from;
    for (const Recorder::Receive& receive : recorder.received[worker]) {
      if (table.is_local(receive.flow)) continue;
      const int source = table.source_worker[receive.flow];
      const int sent = recorder.sent[receive.flow][next[receive.flow]++];
      Last& last = last_from[source];
      if (sent < last.sent) {
        return {false,
                {fmt::format("worker {} sends {} ({}) before {} ({})", source, to_string(table.flows[receive.flow]),
                             name_at(schedule, source, sent), to_string(table.flows[last.receive.flow]),
                             name_at(schedule, source, last.sent)),
                 fmt::format("worker {} receives them the other way round, in {} and {}", worker,
                             name_at(schedule, worker, last.receive.index), name_at(schedule, worker, receive.index))}};
      }
      last = {sent, receive};
    }
  }
  return {};
}

std::vector<int> live_capacities(const Schedule& schedule, const FlowTable& table) {
  const int num_flows = static_cast<int>(table.flows.size());
  std::vector<int> capacities(num_flows, 1);
  Occupancy occupancy(table.flows.size());
  TokenGame<Occupancy> game(schedule, table, {capacities, false}, occupancy);
  // Raising the smallest full flow of each deadlock keeps the largest capacity at the least uniform one: a cycle of
  // flows that all hold c messages would be a cycle at a uniform capacity of c, too.
  int num_raised = 0;
  while (!game.run()) {
    const int flow = smallest_full_flow(table, game.standstill(), capacities);
    if (capacities[flow] == 1) ++num_raised;
    ++capacities[flow];
    game.widen(flow);
  }
  for (int flow = 0; flow < num_flows; ++flow) {
    if (table.is_local(flow)) capacities[flow] = std::max(1, occupancy.peak(flow));
  }
  // A raise may have made an earlier one needless.
  if (static_cast<double>(num_raised) * static_cast<double>(schedule.num_actions()) > kMaxLowerWork) return capacities;
  for (int flow = 0; flow < num_flows; ++flow) {
    if (!table.is_local(flow) && capacities[flow] > 1) capacities[flow] = lower(schedule, table, capacities, flow);
  }
  return capacities;
}

std::optional<std::vector<int>> free_capacities(const Schedule& schedule, const FlowTable& table) {
  const int num_flows = static_cast<int>(table.flows.size());
  if (static_cast<double>(num_flows) * static_cast<double>(schedule.num_actions()) > kMaxFreeCapacityWork)
    return std::nullopt;
  std::vector<int> capacities;
  for (int first = 0; first < num_flows; first += kLanes) {
    Knowledge knowledge(schedule, table, first);
    TokenGame<Knowledge>(schedule, table, {}, knowledge).run();
    for (int lane = 0; lane < knowledge.num_flows(); ++lane) capacities.push_back(std::max(1, knowledge.needed(lane)));
  }
  return capacities;
}

}  // namespace gpipe::detail
