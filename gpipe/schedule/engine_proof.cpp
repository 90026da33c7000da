#include "gpipe/schedule/engine_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/schedule/proof.h"

namespace gpipe::detail {
namespace {

bool has_flow(const std::vector<int>& flows, int flow) {
  return std::find(flows.begin(), flows.end(), flow) != flows.end();
}

// Of every flow, the micro-batches of its messages in the order in which they are sent; of a tie, 0.
std::vector<std::vector<int>> sent_micro_batches(const Schedule& schedule, const FlowTable& table) {
  std::vector<std::vector<int>> sent(table.flows.size());
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) {
      for (const int flow : table.outputs(action)) sent[flow].push_back(action.micro_batch);
    }
  }
  for (const FlowTable::Stage& stage : table.stages) {
    for (const int flow : stage.step_outputs) sent[flow].push_back(0);
  }
  return sent;
}

// The index of the action that puts the message.
int find_sender(const Schedule& schedule, const FlowTable& table, const FlowMessage& message) {
  const Flow& flow = table.flows[message.flow];
  const std::vector<Action>& actions = schedule.workers[table.source_worker[message.flow]];
  int found = 0;
  for (int index = 0; index < static_cast<int>(actions.size()); ++index) {
    const Action& action = actions[index];
    const bool sends = flow.kind == FlowKind::kTie
                           ? action.stage == flow.source && makes_weight_grad(action.kind)
                           : action.micro_batch == message.micro_batch && has_flow(table.outputs(action), message.flow);
    if (sends) found = index;  // a tied gradient is put by the last one
  }
  return found;
}

// Goes through what waits for each other when the game with engines has stopped.
class EngineStandstill {
 public:
  EngineStandstill(const Schedule& schedule, const FlowTable& table, const MessageEngines& engines,
                   Standstill standstill)
      : schedule_(schedule),
        table_(table),
        engines_(engines),
        standstill_(std::move(standstill)),
        sent_(sent_micro_batches(schedule, table)) {}

  std::vector<std::string> cycle() const {
    int worker = 0;
    while (standstill_.waits[worker].kind == Wait::Kind::kNothing) ++worker;
    int engine = engine_awaited_by(worker);
    // Every engine waits for one that waits, too: after as many steps as there are engines we are on the cycle.
    for (std::size_t step = 0; step < engines_.lists.size(); ++step) engine = follow(engine).engine;
    std::vector<std::string> edges;
    const int first = engine;
    do {
      Step step = follow(engine);
      edges.insert(edges.end(), step.edges.begin(), step.edges.end());
      engine = step.engine;
    } while (engine != first);
    return edges;
  }

 private:
  struct Step {
    int engine;                      // the one that is waited for
    std::vector<std::string> edges;  // why, one line each
  };

  FlowMessage next_message_of(int flow) const { return {flow, sent_[flow][standstill_.num_carried[flow]]}; }

  FlowMessage message_at(int engine) const {
    return next_message_of(engines_.lists[engine][standstill_.next_messages[engine]]);
  }

  // The worker's own engine, which is to carry the message that it waits for.
  int engine_awaited_by(int worker) const {
    const Wait& wait = standstill_.waits[worker];
    return (wait.kind == Wait::Kind::kMessage ? engines_.at_destination : engines_.at_source)[wait.flow];
  }

  // What the engine's next message waits for: its sender has not come to it, or it is not next at its other end.
  Step follow(int engine) const {
    const FlowMessage message = message_at(engine);
    const int source = table_.source_worker[message.flow];
    if (!standstill_.is_next_put[message.flow]) return follow_sender(message, source);
    const bool is_sent_here = engines_.at_source[message.flow] == engine;
    const int other = (is_sent_here ? engines_.at_destination : engines_.at_source)[message.flow];
    const int worker = is_sent_here ? table_.destination_worker[message.flow] : source;
    return {other, {overtaking_line(worker, message, message_at(other))}};
  }

  Step follow_sender(const FlowMessage& message, int worker) const {
    const Wait& wait = standstill_.waits[worker];
    const FlowMessage awaited = next_message_of(wait.flow);
    const int position = standstill_.positions[worker];
    const int sender = find_sender(schedule_, table_, message);
    const char* const verb = wait.kind == Wait::Kind::kMessage ? "receive" : "send";
    const std::string who = fmt::format("worker {}: {}", worker, name_at(schedule_, worker, position));
    Step step{engine_awaited_by(worker), {}};
    step.edges.push_back(fmt::format(
        "{} waits to {} {}, and {} {} only after that", who, verb, to_string(table_, awaited),
        sender == position ? "sends" : name_at(schedule_, worker, sender) + " sends", to_string(table_, message)));
    const FlowMessage next = message_at(step.engine);
    if (next != awaited) step.edges.push_back(overtaking_line(worker, awaited, next));
    return step;
  }

  std::string overtaking_line(int worker, const FlowMessage& late, const FlowMessage& early) const {
    return fmt::format("worker {}: {} comes after {} in the list of its engine", worker, to_string(table_, late),
                       to_string(table_, early));
  }

  const Schedule& schedule_;
  const FlowTable& table_;
  const MessageEngines& engines_;
  const Standstill standstill_;
  const std::vector<std::vector<int>> sent_;
};

// Throws unless every message between workers is there once.
void check_messages(const FlowTable& table, const MessageOrder& order, const std::vector<std::vector<int>>& sent,
                    int num_micro_batches) {
  // Of each flow, by micro-batch: whether its message is still to come.
  std::vector<std::vector<bool>> is_missing(table.flows.size());
  std::size_t num_missing = 0;
  for (int flow = 0; flow < static_cast<int>(table.flows.size()); ++flow) {
    if (table.is_local(flow)) continue;
    is_missing[flow].resize(num_micro_batches);
    for (const int micro_batch : sent[flow]) is_missing[flow][micro_batch] = true;
    num_missing += sent[flow].size();
  }
  for (const FlowMessage& message : order) {
    if (message.flow < 0 || message.flow >= static_cast<int>(table.flows.size())) {
      throw InvalidArgument(
          fmt::format("the message order names flow {}, but the schedule has {}; it is an order of "
                      "another schedule or of other skips and ties",
                      message.flow, table.flows.size()));
    }
    const std::vector<bool>& missing = is_missing[message.flow];
    const bool exists = message.micro_batch >= 0 && message.micro_batch < static_cast<int>(missing.size());
    if (!exists || !missing[message.micro_batch]) {
      throw InvalidArgument(fmt::format("the message order has {} twice, or it is no message between workers",
                                        to_string(table, message)));
    }
    is_missing[message.flow][message.micro_batch] = false;
    --num_missing;
  }
  if (num_missing == 0) return;
  for (int flow = 0;; ++flow) {
    const auto found = std::find(is_missing[flow].begin(), is_missing[flow].end(), true);
    if (found == is_missing[flow].end()) continue;
    throw InvalidArgument(fmt::format("the message order lacks {} messages, such as {}", num_missing,
                                      to_string(table, {flow, static_cast<int>(found - is_missing[flow].begin())})));
  }
}

// Whether the messages of each flow come in the order in which they are sent.
Survival keeps_flows_in_order(const FlowTable& table, const MessageOrder& order,
                              const std::vector<std::vector<int>>& sent) {
  std::vector<std::size_t> next(table.flows.size(), 0);
  for (const FlowMessage& message : order) {
    const FlowMessage expected = {message.flow, sent[message.flow][next[message.flow]++]};
    if (message == expected) continue;
    return {false,
            {fmt::format("worker {} sends {} before {}", table.source_worker[message.flow], to_string(table, expected),
                         to_string(table, message)),
             "the message order has them the other way round"}};
  }
  return {};
}

}  // namespace

MessageEngines one_engine_a_worker(const FlowTable& table, const MessageOrder& order) {
  MessageEngines engines;
  engines.lists.resize(table.step_inputs.size());
  engines.at_source = table.source_worker;
  engines.at_destination = table.destination_worker;
  for (const FlowMessage& message : order) {
    engines.lists[table.source_worker[message.flow]].push_back(message.flow);
    engines.lists[table.destination_worker[message.flow]].push_back(message.flow);
  }
  return engines;
}

Survival survives_engines(const Schedule& schedule, const FlowTable& table, const MessageEngines& engines) {
  Spectator<> spectator;
  TokenGame<Spectator<>> game(schedule, table, {{}, false, &engines}, spectator);
  if (game.run()) return {};
  return {false, EngineStandstill(schedule, table, engines, game.standstill()).cycle()};
}

Survival survives_one_engine(const Schedule& schedule, const FlowTable& table, const MessageOrder& order) {
  const std::vector<std::vector<int>> sent = sent_micro_batches(schedule, table);
  check_messages(table, order, sent, schedule.num_micro_batches);
  Survival survival = keeps_flows_in_order(table, order, sent);
  return survival.survives ? survives_engines(schedule, table, one_engine_a_worker(table, order)) : survival;
}

}  // namespace gpipe::detail
