#include "gpipe/schedule/weaker_transport.h"

#include <fmt/format.h>

#include <unordered_map>

#include "gpipe/schedule/deadlock.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe {
namespace {

// Runs the schedule and records, for every flow, the actions that sent and that received its messages.
class Recorder : public Spectator {
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

}  // namespace

Survival survives_rendezvous(const Schedule& schedule, const FlowTable& table) {
  Spectator spectator;
  TokenGame<Spectator> game(schedule, table, {{}, true}, spectator);
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

}  // namespace gpipe
