#include "gpipe/schedule/capacity.h"

#include <algorithm>
#include <array>

#include "gpipe/schedule/deadlock.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe {
namespace {

// Counts what every flow holds at most.
class Occupancy : public Spectator {
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
  Spectator spectator;
  return TokenGame<Spectator>(schedule, table, {capacities, false}, spectator).run();
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
class Knowledge {
 public:
  static constexpr int kLanes = 16;
  using Token = std::array<int, kLanes>;

  Knowledge(const Schedule& schedule, const FlowTable& table, int first_flow)
      : first_flow_(first_flow),
        num_flows_(std::min<int>(kLanes, static_cast<int>(table.flows.size()) - first_flow)),
        known_(schedule.num_workers(), Token{}) {}

  void take(int worker, int flow, const Token& token) {
    Token& known = known_[worker];
    for (int lane = 0; lane < kLanes; ++lane) known[lane] = std::max(known[lane], token[lane]);
    if (in_group(flow)) known[flow - first_flow_] = ++received_[flow - first_flow_];
  }
  void start(int, int) {}
  Token slot(int, int) { return {}; }
  void claim(int, int, const Token&) {}
  Token put(int worker, int flow) {
    if (in_group(flow)) {
      const int lane = flow - first_flow_;
      needed_[lane] = std::max(needed_[lane], ++sent_[lane] - known_[worker][lane]);
    }
    return known_[worker];
  }
  void end(int, int) {}
  void end_step(int) {}

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
  for (int first = 0; first < num_flows; first += Knowledge::kLanes) {
    Knowledge knowledge(schedule, table, first);
    TokenGame<Knowledge>(schedule, table, {}, knowledge).run();
    for (int lane = 0; lane < knowledge.num_flows(); ++lane) capacities.push_back(std::max(1, knowledge.needed(lane)));
  }
  return capacities;
}

}  // namespace gpipe
