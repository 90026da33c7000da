// The token game: runs the actions of a schedule in any order its dependencies allow, without knowing what they cost.
// The proof, the capacities and the simulator are three players of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::detail {

// Engines that carry the messages between workers. Each is one worker's and has a list of messages, which it sends and
// receives in this order, one at a time: a message is carried when both of its engines have come to it and it was put.
struct MessageEngines {
  std::vector<std::vector<int>> lists;  // of each engine: the flows of its messages, in order
  std::vector<int> at_source;           // of each flow: the engine that sends its messages; unused inside a worker
  std::vector<int> at_destination;      // and the engine that receives them
  // A worker puts its messages one after the other, in the order of the flow table, and each time waits until its
  // engine has carried it. False: it goes on at once, and the engine carries the message later.
  bool sender_waits = true;
};

// How a flow limits its sender. A flow holds at most `capacity` messages; a full one makes its sender wait until the
// receiver starts the action that takes the oldest. Flows inside a worker never limit it.
struct Transport {
  static constexpr int kUnbounded = -1;
  std::vector<int> capacities;  // one per flow; empty = unbounded
  bool rendezvous = false;      // a send waits until its receiver has come to the action that takes the message
  // Null: every flow carries its messages by itself. REQUIRES otherwise: no capacities and no rendezvous; the game's
  // user keeps the engines.
  const MessageEngines* engines = nullptr;
};

// A queue that costs nothing while it is empty: there are two per flow, and a hostile file can have many flows.
template <typename Token>
class TokenQueue {
 public:
  bool empty() const { return first_ == tokens_.size(); }
  const Token& front() const { return tokens_[first_]; }
  void push(Token token) { tokens_.push_back(std::move(token)); }
  void pop() {
    ++first_;
    if (first_ * 2 < tokens_.size()) return;
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  void resize(std::size_t size) { tokens_.resize(size); }
  Token* begin() { return tokens_.data() + first_; }
  Token* end() { return tokens_.data() + tokens_.size(); }

 private:
  std::vector<Token> tokens_;
  std::size_t first_ = 0;
};

struct Wait {
  enum class Kind { kNothing, kMessage, kSlot, kEngine };  // the last: until its engine has carried what it has put
  Kind kind = Kind::kNothing;
  int flow = -1;
};

// Where every worker is when nothing moves any more.
struct Standstill {
  std::vector<Wait> waits;
  std::vector<int> positions;  // index of the action; the size of the list at the end of the step
  // With engines only:
  std::vector<int> next_messages;  // of each engine: how many messages of its list have been carried
  std::vector<int> num_carried;    // of each flow: how many of its messages
  std::vector<bool> is_next_put;   // of each flow: whether the next one was put
};

// Note [Token game]
// ~~~~~~~~~~~~~~~~~
// Each worker goes through its actions in order. For each one it takes a message from every input flow, starts, and
// then puts a message into every output flow. Inputs are taken all at once, when all are there; outputs are put all at
// once, when all have room. After its last action a worker takes the messages of its step inputs (tied gradients).
//
// Room is a token, too: a bounded flow starts with `capacity` slot tokens; putting a message uses one up, the receiver
// gives one back as it starts. In a rendezvous there are none to start with: the receiver gives one as it arrives.
//
// A message that was put is there for its receiver at once, or, with engines, when they have carried it.
//
// No worker and no engine ever chooses, so the order in which they are visited does not matter: the game gets stuck in
// one state, or in none, for any timing.
//
// Player: `using Token = …;`, and
//   void take(int worker, int flow, const Token&)   a message was taken; before start
//   void start(int worker, int index)               the action starts; index in the worker's list
//   Token slot(int worker, int flow)                the token to give back for a message taken, after start
//   void claim(int worker, int flow, const Token&)  a slot was used; after start, before put
//   Token put(int worker, int flow)                 the message to put; after all claims
//   Token carry(int flow, const Token&)             the message that was put, as it arrives; at once without engines
//   void end(int worker, int index)                 the action is over
//   void end_step(int worker)                       the worker is at its end; after its last take
template <typename Player>
class TokenGame {
 public:
  using Token = typename Player::Token;

  // REQUIRES: the schedule keeps the rules of completeness and placement.
  TokenGame(const Schedule& schedule, const FlowTable& table, const Transport& transport, Player& player)
      : schedule_(schedule),
        table_(table),
        rendezvous_(transport.rendezvous),
        engines_(transport.engines),
        player_(player) {
    messages_.resize(table.flows.size());
    slots_.resize(table.flows.size());
    workers_.resize(schedule.num_workers());
    weight_grads_left_.assign(schedule.num_stages, schedule.num_micro_batches);
    is_bounded_.assign(table.flows.size(), 0);
    for (int flow = 0; flow < static_cast<int>(table.flows.size()); ++flow) {
      const int capacity = transport.capacities.empty() ? Transport::kUnbounded : transport.capacities[flow];
      is_bounded_[flow] = !table.is_local(flow) && (transport.rendezvous || capacity != Transport::kUnbounded);
      // No flow carries more than a message a micro-batch, so more room than that is never used.
      if (is_bounded_[flow] && !transport.rendezvous) {
        slots_[flow].resize(static_cast<std::size_t>(std::min(capacity, schedule.num_micro_batches)));
      }
    }
    for (int worker = 0; worker < schedule.num_workers(); ++worker) runnable_.push_back(worker);
    if (engines_ == nullptr) return;
    on_the_way_.resize(table.flows.size());
    num_carried_.assign(table.flows.size(), 0);
    next_messages_.assign(engines_->lists.size(), 0);
  }

  // Plays until nothing moves. True if every worker reached its end.
  bool run() {
    while (!runnable_.empty()) {
      const int worker = runnable_.back();
      runnable_.pop_back();
      while (advance(worker)) {
      }
    }
    return num_finished_ == schedule_.num_workers();
  }

  // Gives a bounded flow one more slot; `run` may be called again.
  void widen(int flow) { give_slot(flow, Token{}); }

  Standstill standstill() const {
    Standstill standstill;
    for (const Worker& worker : workers_) {
      standstill.waits.push_back(worker.wait);
      standstill.positions.push_back(worker.index);
    }
    standstill.next_messages = next_messages_;
    standstill.num_carried = num_carried_;
    for (const TokenQueue<Token>& messages : on_the_way_) standstill.is_next_put.push_back(!messages.empty());
    return standstill;
  }

 private:
  enum class Phase { kArriving, kTaking, kPutting, kFinished };
  struct Worker {
    int index = 0;
    Phase phase = Phase::kArriving;
    std::size_t num_outputs_put = 0;  // of its action, where a sender waits for its engine
    Wait wait;
  };

  const std::vector<int>& inputs(int worker, int index) const {
    const auto& actions = schedule_.workers[worker];
    return index < static_cast<int>(actions.size()) ? table_.inputs(actions[index]) : table_.step_inputs[worker];
  }

  bool is_last_weight_grad(const Action& action) const {
    return makes_weight_grad(action.kind) && weight_grads_left_[action.stage] == 1;
  }

  // One phase of one action. False if the worker has to wait or is finished.
  bool advance(int index) {
    Worker& worker = workers_[index];
    worker.wait = {};
    switch (worker.phase) {
      case Phase::kArriving:
        worker.phase = Phase::kTaking;
        if (rendezvous_) {
          for (const int flow : inputs(index, worker.index)) {
            if (is_bounded_[flow]) give_slot(flow, player_.slot(index, flow));
          }
        }
        return true;
      case Phase::kTaking:
        return take(index, worker);
      case Phase::kPutting:
        return put(index, worker);
      case Phase::kFinished:
        return false;
    }
    return false;
  }

  bool take(int index, Worker& worker) {
    const std::vector<int>& flows = inputs(index, worker.index);
    for (const int flow : flows) {
      if (messages_[flow].empty()) {
        worker.wait = {Wait::Kind::kMessage, flow};
        return false;
      }
    }
    for (const int flow : flows) {
      player_.take(index, flow, messages_[flow].front());
      messages_[flow].pop();
    }
    if (worker.index == static_cast<int>(schedule_.workers[index].size())) {
      worker.phase = Phase::kFinished;
      ++num_finished_;
      player_.end_step(index);
      return false;
    }
    player_.start(index, worker.index);
    if (!rendezvous_) {
      for (const int flow : flows) {
        if (is_bounded_[flow]) give_slot(flow, player_.slot(index, flow));
      }
    }
    worker.phase = Phase::kPutting;
    return true;
  }

  bool has_room(Worker& worker, const std::vector<int>& flows) {
    for (const int flow : flows) {
      if (is_bounded_[flow] && slots_[flow].empty()) {
        worker.wait = {Wait::Kind::kSlot, flow};
        return false;
      }
    }
    return true;
  }

  void put_all(int index, const std::vector<int>& flows) {
    for (const int flow : flows) {
      if (!is_bounded_[flow]) continue;
      player_.claim(index, flow, slots_[flow].front());
      slots_[flow].pop();
    }
    for (const int flow : flows) put_message(index, flow);
  }

  void put_message(int index, int flow) {
    if (engines_ == nullptr || table_.is_local(flow)) {
      deliver(flow, player_.carry(flow, player_.put(index, flow)));
      return;
    }
    on_the_way_[flow].push(player_.put(index, flow));
    run_engines(flow);
  }

  void deliver(int flow, Token message) {
    messages_[flow].push(std::move(message));
    wake(table_.destination_worker[flow], {Wait::Kind::kMessage, flow});
  }

  // Carries what can be carried now that a message of `flow` can, perhaps.
  void run_engines(int flow) {
    ready_flows_.assign(1, flow);
    while (!ready_flows_.empty()) {
      const int next = ready_flows_.back();
      ready_flows_.pop_back();
      const std::array<int, 2> ends = {engines_->at_source[next], engines_->at_destination[next]};
      if (on_the_way_[next].empty() || flow_at(ends[0]) != next || flow_at(ends[1]) != next) continue;
      deliver(next, player_.carry(next, on_the_way_[next].front()));
      on_the_way_[next].pop();
      ++num_carried_[next];
      wake(table_.source_worker[next], {Wait::Kind::kEngine, next});
      for (const int engine : ends) {
        ++next_messages_[engine];
        if (flow_at(engine) >= 0) ready_flows_.push_back(flow_at(engine));
      }
    }
  }

  // Of the message that the engine is to carry next; -1 if there is none.
  int flow_at(int engine) const {
    const std::vector<int>& list = engines_->lists[engine];
    const auto next = static_cast<std::size_t>(next_messages_[engine]);
    return next < list.size() ? list[next] : -1;
  }

  // False if the worker has to wait for its engine.
  bool put_one_by_one(int index, Worker& worker, const std::vector<int>& flows, const std::vector<int>& step_flows) {
    const auto output = [&](std::size_t at) { return at < flows.size() ? flows[at] : step_flows[at - flows.size()]; };
    while (true) {
      const std::size_t num_put = worker.num_outputs_put;
      if (num_put > 0 && !on_the_way_[output(num_put - 1)].empty()) {
        worker.wait = {Wait::Kind::kEngine, output(num_put - 1)};
        return false;
      }
      if (num_put == flows.size() + step_flows.size()) break;
      ++worker.num_outputs_put;
      put_message(index, output(num_put));
    }
    worker.num_outputs_put = 0;
    return true;
  }

  bool put(int index, Worker& worker) {
    const Action& action = schedule_.workers[index][worker.index];
    const std::vector<int>& flows = table_.outputs(action);
    const bool last = is_last_weight_grad(action);
    const std::vector<int>& step_flows = last ? table_.stages[action.stage].step_outputs : FlowTable::none;
    if (engines_ != nullptr && engines_->sender_waits) {
      if (!put_one_by_one(index, worker, flows, step_flows)) return false;
    } else {
      if (!has_room(worker, flows) || !has_room(worker, step_flows)) return false;
      put_all(index, flows);
      put_all(index, step_flows);
    }
    if (makes_weight_grad(action.kind)) --weight_grads_left_[action.stage];
    player_.end(index, worker.index);
    ++worker.index;
    worker.phase = Phase::kArriving;
    return true;
  }

  void give_slot(int flow, Token token) {
    slots_[flow].push(std::move(token));
    wake(table_.source_worker[flow], {Wait::Kind::kSlot, flow});
  }

  void wake(int index, const Wait& what) {
    Wait& wait = workers_[index].wait;
    if (wait.kind != what.kind || wait.flow != what.flow) return;
    wait = {};
    runnable_.push_back(index);
  }

  const Schedule& schedule_;
  const FlowTable& table_;
  const bool rendezvous_;
  const MessageEngines* const engines_;
  Player& player_;
  std::vector<TokenQueue<Token>> messages_;  // per flow
  std::vector<TokenQueue<Token>> slots_;     // per flow
  std::vector<char> is_bounded_;             // per flow
  std::vector<Worker> workers_;
  std::vector<int> weight_grads_left_;  // per stage
  std::vector<int> runnable_;
  int num_finished_ = 0;
  // With engines only:
  std::vector<TokenQueue<Token>> on_the_way_;  // per flow: messages that were put and not carried yet
  std::vector<int> num_carried_;               // per flow
  std::vector<int> next_messages_;             // per engine: position in its list
  std::vector<int> ready_flows_;               // room for `run_engines` to note what it has to look at
};

// A player that keeps no score, for others to begin with: does the game come to its end?
struct NoToken {};
template <typename TokenType = NoToken>
struct Spectator {
  using Token = TokenType;
  void take(int, int, const Token&) {}
  void start(int, int) {}
  Token slot(int, int) { return {}; }
  void claim(int, int, const Token&) {}
  Token put(int, int) { return {}; }
  Token carry(int, const Token& token) { return token; }
  void end(int, int) {}
  void end_step(int) {}
};

}  // namespace gpipe::detail
