#include "gpipe/schedule/message_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "gpipe/schedule/engine_proof.h"
#include "gpipe/schedule/proof.h"
#include "gpipe/schedule/put_recorder.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe {
namespace {

using detail::PutRecorder;
using detail::Spectator;
using detail::TokenGame;

// When something was put.
struct Moment {
  double seconds = 0;
};

double uniform_seconds(ActionKind kind) {
  if (kind == ActionKind::kUpdate) return 0;
  return kind == ActionKind::kBackward ? 2 : 1;
}

// Keeps the time of `uniform_costs`, which belongs to a later folder, where messages cost nothing.
class UniformClock : public Spectator<Moment> {
 public:
  UniformClock(const Schedule& schedule, const FlowTable& /*table*/)
      : schedule_(schedule),
        num_stages_(schedule.num_workers(), 0),
        now_(schedule.num_workers(), 0),
        ready_(schedule.num_workers(), 0) {
    for (const int worker : schedule.worker_of_stage) ++num_stages_[worker];
  }

  void take(int worker, int /*flow*/, const Moment& message) {
    ready_[worker] = std::max(ready_[worker], message.seconds);
  }

  void start(int worker, int index) {
    const ActionKind kind = schedule_.workers[worker][index].kind;
    now_[worker] = std::max(now_[worker], ready_[worker]) + uniform_seconds(kind) / num_stages_[worker];
  }

  Moment put(int worker, int /*flow*/) { return {now_[worker]}; }

 private:
  const Schedule& schedule_;
  std::vector<int> num_stages_;  // per worker
  std::vector<double> now_;      // per worker: when its last action ended
  std::vector<double> ready_;    // per worker: when the last message that it has taken was put
};

// The flows of a schedule that runs to its end.
FlowTable proven_flow_table(const Schedule& schedule, const Routes& routes) {
  detail::check_structure(schedule);
  FlowTable table = make_flow_table(schedule, routes);
  detail::check_no_deadlock(schedule, table);
  return table;
}

}  // namespace

MessageOrder detail::uniform_message_order(const Schedule& schedule, const FlowTable& table) {
  PutRecorder<UniformClock> recorder(schedule, table);
  TokenGame<PutRecorder<UniformClock>>(schedule, table, {}, recorder).run();
  return recorder.order();
}

MessageOrder message_order(const Schedule& schedule, const Routes& routes) {
  return detail::uniform_message_order(schedule, proven_flow_table(schedule, routes));
}

std::vector<MessageOrder> messages_by_worker(const MessageOrder& order, const FlowTable& table) {
  std::vector<MessageOrder> lists(table.step_inputs.size());
  for (const FlowMessage& message : order) {
    lists[table.source_worker[message.flow]].push_back(message);
    lists[table.destination_worker[message.flow]].push_back(message);
  }
  return lists;
}

Survival survives_one_engine(const Schedule& schedule, const Routes& routes, const MessageOrder& order) {
  return detail::survives_one_engine(schedule, proven_flow_table(schedule, routes), order);
}

std::string to_string(const FlowTable& table, const FlowMessage& message) {
  const Flow& flow = table.flows[message.flow];
  if (flow.kind == FlowKind::kTie) return to_string(flow);
  return fmt::format("{} of micro-batch {}", to_string(flow), message.micro_batch);
}

std::string to_text(const FlowTable& table, const MessageOrder& order) {
  std::string text;
  for (const FlowMessage& message : order) text += to_string(table, message) + "\n";
  return text;
}

}  // namespace gpipe
