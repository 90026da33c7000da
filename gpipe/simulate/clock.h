// The clock of a simulated step: a player of the token game that keeps the time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "gpipe/report/timeline.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/simulate/cost_table.h"

namespace gpipe::detail {

// See Note [Token game].
class Clock {
 public:
  static constexpr std::uint32_t kNoCause = std::numeric_limits<std::uint32_t>::max();

  // When a message has arrived or room was made, and the action that did it.
  struct Token {
    double seconds = 0;
    std::uint32_t cause = kNoCause;
  };

  Clock(const Schedule& schedule, const FlowTable& table, const CostTable& costs, bool record)
      : schedule_(schedule), table_(table), costs_(costs), record_(record) {
    const int num_workers = schedule.num_workers();
    now_.resize(num_workers);
    ready_.resize(num_workers);
    link_free_seconds_.assign(costs.num_links, 0);
    workers.resize(num_workers);
    std::size_t offset = 0;
    for (int worker = 0; worker < num_workers; ++worker) {
      offsets_.push_back(static_cast<std::uint32_t>(offset));
      offset += schedule.workers[worker].size();
      if (record) workers[worker].spans.reserve(schedule.workers[worker].size());
    }
    if (record) causes.resize(offset, kNoCause);
  }

  // Before the game: every worker has one engine, which is busy from the start of a message to its arrival.
  void use_engines() { engine_free_seconds_.assign(now_.size(), 0); }

  void take(int worker, int, const Token& token) { later(ready_[worker], token); }

  void start(int worker, int index) {
    const Action& action = schedule_.workers[worker][index];
    Token& now = now_[worker];
    later(now, ready_[worker]);
    ready_[worker] = {};
    const double start = now.seconds;
    const double end = start + costs_.seconds(action);
    const std::uint32_t id = offsets_[worker] + static_cast<std::uint32_t>(index);
    started_ = {start, id};
    if (record_) {
      causes[id] = now.cause;
      workers[worker].spans.push_back({action, start, end});
    }
    now = {end, id};
  }

  Token slot(int, int) { return started_; }

  void claim(int worker, int, const Token& token) { later(now_[worker], token); }

  Token put(int worker, int) { return now_[worker]; }

  Token carry(int flow, const Token& put) {
    if (table_.is_local(flow)) return put;
    if (!engine_free_seconds_.empty()) return carry_by_engines(flow, put);
    double& free = link_free_seconds_[costs_.link_of_flow[flow]];
    free = std::max(free, put.seconds) + costs_.transfer_seconds[flow];
    return {free + costs_.latency_seconds[flow], put.cause};
  }

  void end(int, int) {}

  void end_step(int worker) {
    Token& now = now_[worker];
    later(now, ready_[worker]);
    WorkerTimeline& timeline = workers[worker];
    timeline.update_start_seconds = now.seconds;
    timeline.update_end_seconds = now.seconds + costs_.update_seconds[worker];
    if (timeline.update_end_seconds > makespan_seconds || last_cause == kNoCause) last_cause = now.cause;
    makespan_seconds = std::max(makespan_seconds, timeline.update_end_seconds);
  }

  std::vector<SpanRef> critical_path() const {
    std::vector<SpanRef> path;
    for (std::uint32_t id = last_cause; id != kNoCause; id = causes[id]) {
      const auto worker = std::upper_bound(offsets_.begin(), offsets_.end(), id) - offsets_.begin() - 1;
      path.push_back({static_cast<int>(worker), static_cast<int>(id - offsets_[worker])});
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  double makespan_seconds = 0;
  std::uint32_t last_cause = kNoCause;
  std::vector<WorkerTimeline> workers;
  std::vector<std::uint32_t> causes;  // of each action: the one it waited for

 private:
  static void later(Token& token, const Token& other) {
    if (other.seconds > token.seconds) token = other;
  }

  Token carry_by_engines(int flow, const Token& put) {
    double& source = engine_free_seconds_[table_.source_worker[flow]];
    double& destination = engine_free_seconds_[table_.destination_worker[flow]];
    const double start = std::max({put.seconds, source, destination});
    source = destination = start + costs_.transfer_seconds[flow] + costs_.latency_seconds[flow];
    return {source, put.cause};
  }

  const Schedule& schedule_;
  const FlowTable& table_;
  const CostTable& costs_;
  const bool record_;
  std::vector<Token> now_;                   // per worker: when it is free
  std::vector<Token> ready_;                 // per worker: when the messages taken for its next action had arrived
  Token started_;                            // the action that started last
  std::vector<double> link_free_seconds_;    // per link: its messages are put by one worker, one after the other
  std::vector<double> engine_free_seconds_;  // per worker; empty without engines
  std::vector<std::uint32_t> offsets_;       // per worker: the number of its first action
};

}  // namespace gpipe::detail
