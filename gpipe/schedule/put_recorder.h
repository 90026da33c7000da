// Put recorder: a player of the token game that writes down when each message between workers is put.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "gpipe/schedule/message_order.h"
#include "gpipe/schedule/token_game.h"

namespace gpipe::detail {

// Timekeeper: a player whose tokens have `seconds`, and whose clock never goes back.
template <typename Timekeeper>
class PutRecorder : public Timekeeper {
 public:
  using Token = typename Timekeeper::Token;

  // The arguments behind the table are those of the timekeeper behind its own.
  template <typename... Arguments>
  PutRecorder(const Schedule& schedule, const FlowTable& table, Arguments&&... arguments)
      : Timekeeper(schedule, table, std::forward<Arguments>(arguments)...),
        schedule_(schedule),
        table_(table),
        started_(schedule.num_workers(), 0) {}

  void start(int worker, int index) {
    started_[worker] = index;
    Timekeeper::start(worker, index);
  }

  Token put(int worker, int flow) {
    const Token token = Timekeeper::put(worker, flow);
    if (table_.is_local(flow)) return token;
    const bool is_tie = table_.flows[flow].kind == FlowKind::kTie;
    puts_.push_back({token.seconds, {flow, is_tie ? 0 : schedule_.workers[worker][started_[worker]].micro_batch}});
    return token;
  }

  // After the game. What a message depends on was put before it in the game and no later in time, so the order is one
  // of Note [One engine a worker].
  MessageOrder order() {
    std::stable_sort(puts_.begin(), puts_.end(), [](const Put& a, const Put& b) { return a.seconds < b.seconds; });
    MessageOrder order;
    order.reserve(puts_.size());
    for (const Put& put : puts_) order.push_back(put.message);
    return order;
  }

 private:
  struct Put {
    double seconds;
    FlowMessage message;
  };

  const Schedule& schedule_;
  const FlowTable& table_;
  std::vector<int> started_;  // per worker: the index of its action
  std::vector<Put> puts_;     // as they come in the game
};

}  // namespace gpipe::detail
