#include "gpipe/simulate/forecast.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <valarray>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/simulate/cost_table.h"
#include "gpipe/text/require.h"

namespace gpipe::detail {
namespace {

using Seconds = std::valarray<double>;

// Plays the order of a schedule and keeps the time, by the rules of `simulate`. See Note [Steady state].
class Steps {
 public:
  Steps(const LongSchedule& schedule, const FlowTable& table, const CostTable& costs)
      : schedule_(schedule),
        table_(table),
        costs_(costs),
        now_(0.0, schedule.num_workers()),
        link_free_(0.0, costs.num_links),
        messages_(table.flows.size()),
        weight_grads_left_(schedule.num_stages(), schedule.written.num_micro_batches),
        phase_(schedule.num_workers(), 0) {}

  double run() {
    std::size_t at = 0;
    if (!schedule_.rounds.empty() && !schedule_.is_in_phases) {
      at = schedule_.rounds.front().end;
      play(0, at, /*counts=*/true);
      repeat(schedule_.num_added_rounds);
    }
    play(at, schedule_.order.size(), /*counts=*/true);
    double end = 0;
    for (int worker = 0; worker < schedule_.num_workers(); ++worker) {
      double& now = now_[worker];
      take(now, table_.step_inputs[worker]);
      end = std::max(end, now + costs_.update_seconds[worker]);
    }
    return end;
  }

 private:
  // Waits for the next message of each of the flows.
  void take(double& now, const std::vector<int>& flows) {
    for (const int flow : flows) {
      now = std::max(now, messages_[flow].front());
      messages_[flow].pop();
    }
  }

  void put(int worker, const std::vector<int>& flows) {
    for (const int flow : flows) {
      if (table_.is_local(flow)) {
        messages_[flow].push(now_[worker]);
      } else {
        double& free = link_free_[costs_.link_of_flow[flow]];
        free = std::max(free, now_[worker]) + costs_.transfer_seconds[flow];
        messages_[flow].push(free + costs_.latency_seconds[flow]);
      }
    }
  }

  // Everything that the worker and its links do for the micro-batches that are not written, at once, if the worker
  // comes to them with this step. See Note [Phases].
  void pass_over_phase(const LongSchedule::Step& step) {
    int& phase = phase_[step.worker];
    if (phase == static_cast<int>(schedule_.rounds.size())) return;
    const LongSchedule::Round& round = schedule_.rounds[phase];
    if (step.index != round.worker_end[step.worker]) return;
    ++phase;
    const auto count = static_cast<double>(schedule_.num_added_rounds);
    for (int index = round.worker_begin[step.worker]; index < step.index; ++index) {
      const Action& action = schedule_.action({step.worker, index});
      now_[step.worker] += costs_.seconds(action) * count;
      for (const int flow : outputs_of(action)) {
        if (!table_.is_local(flow)) link_free_[costs_.link_of_flow[flow]] += costs_.transfer_seconds[flow] * count;
      }
    }
  }

  const std::vector<int>& outputs_of(const Action& action) const {
    static const std::vector<int> none;
    const FlowTable::Stage& stage = table_.stages[action.stage];
    if (action.kind == ActionKind::kForward) return stage.forward_outputs;
    return makes_input_grad(action.kind) ? stage.backward_outputs : none;
  }

  // `counts`: whether these are the only ones of their micro-batches.
  void play(std::size_t begin, std::size_t end, bool counts) {
    for (std::size_t at = begin; at < end; ++at) {
      const LongSchedule::Step& step = schedule_.order[at];
      const Action& action = schedule_.action(step);
      const FlowTable::Stage& stage = table_.stages[action.stage];
      double& now = now_[step.worker];
      if (schedule_.is_in_phases) pass_over_phase(step);
      if (action.kind == ActionKind::kForward) take(now, stage.forward_inputs);
      if (makes_input_grad(action.kind)) take(now, stage.backward_inputs);
      now += costs_.seconds(action);
      put(step.worker, outputs_of(action));
      if (!counts || !makes_weight_grad(action.kind)) continue;
      if (--weight_grads_left_[action.stage] == 0) put(step.worker, stage.step_outputs);
    }
  }

  void play_rounds(int count) {
    const LongSchedule::Round& round = schedule_.rounds.front();
    for (int played = 0; played < count; ++played) play(round.begin, round.end, /*counts=*/false);
  }

  // All times that what comes next depends on. There are as many after every round.
  template <typename OnTime>
  void for_each_time(const OnTime& on_time) {
    for (double& time : now_) on_time(time);
    for (double& time : link_free_) on_time(time);
    for (TokenQueue<double>& waiting : messages_) {
      for (double& time : waiting) on_time(time);
    }
  }

  Seconds times() {
    std::vector<double> result;
    for_each_time([&](double time) { result.push_back(time); });
    return Seconds(result.data(), result.size());
  }

  void set_times(const Seconds& times) {
    const double* next = std::begin(times);
    for_each_time([&](double& time) { time = *next++; });
  }

  // Whether each time has grown as much from the second to the third as from the first to the second, to rounding.
  static bool is_regular(const Seconds& first, const Seconds& second, const Seconds& third, double rounding) {
    for (std::size_t at = 0; at < first.size(); ++at) {
      if (!(std::abs((third[at] - second[at]) - (second[at] - first[at])) <= rounding)) return false;
    }
    return true;
  }

  // Whether the times are `times` and `count` times the growth after the round has been played `cycle` times from one
  // time less.
  bool still_grows(const Seconds& times, const Seconds& growth, int cycle, std::int64_t count) {
    set_times(times + growth * static_cast<double>(count - 1));
    play_rounds(cycle);
    const Seconds expected = times + growth * static_cast<double>(count);
    const double rounding = kRounding * expected.max();
    return (std::abs(this->times() - expected) <= rounding).min();
  }

  // Passes over as many cycles as can be, at most `most`, and returns their number.
  std::int64_t pass_over(const Seconds& times, const Seconds& growth, int cycle, std::int64_t most) {
    const auto is_right = [&](std::int64_t count) { return still_grows(times, growth, cycle, count); };
    std::int64_t passed = 0;
    if (is_right(most)) {
      passed = most;
    } else {
      std::int64_t step = 1;
      for (; passed + step < most && is_right(passed + step); step *= 2) passed += step;
      for (; step > 0; step /= 2) {
        if (passed + step < most && is_right(passed + step)) passed += step;
      }
    }
    set_times(times + growth * static_cast<double>(passed));
    return passed;
  }

  void repeat(std::int64_t left) {
    // The slowest way through a schedule may go around in as many rounds as there are micro-batches under way.
    const std::size_t longest_cycle = 4 * static_cast<std::size_t>(schedule_.num_workers());
    std::deque<Seconds> past = {times()};  // after each of the last rounds, the latest first
    for (std::int64_t played = 0; left > 0; ++played) {
      play_rounds(1);
      --left;
      past.push_front(times());
      const Seconds& latest = past.front();
      if (!std::isfinite(latest.max())) return;
      if (played == kMostRounds) {
        const auto length = static_cast<double>(past.size() - 1);
        set_times(latest + (latest - past.back()) * (static_cast<double>(left) / length));
        return;
      }
      if (past.size() > 2 * longest_cycle + 1) past.pop_back();
      const double rounding = kRounding * latest.max();
      for (std::size_t cycle = 1; 2 * cycle < past.size(); ++cycle) {
        if (!is_regular(past[2 * cycle], past[cycle], past[0], rounding)) continue;
        const auto length = static_cast<std::int64_t>(cycle);
        if (left < length) break;
        const std::int64_t passed = pass_over(latest, latest - past[cycle], static_cast<int>(cycle), left / length);
        left -= passed * length;
        if (passed > 0) past = {times()};
        break;
      }
    }
  }

  static constexpr double kRounding = 1e-12;
  // No costs are known that take as many until they are regular. If there are such, the mean growth goes on to the end.
  static constexpr std::int64_t kMostRounds = 50'000;

  const LongSchedule& schedule_;
  const FlowTable& table_;
  const CostTable& costs_;
  Seconds now_;                               // per worker: when it is free
  Seconds link_free_;                         // per link
  std::vector<TokenQueue<double>> messages_;  // per flow: when those that wait have arrived
  std::vector<int> weight_grads_left_;        // per stage
  std::vector<int> phase_;                    // per worker: the next one to be passed over
};

double checked_seconds(const LongSchedule& schedule, const FlowTable& table, const CostTable& costs) {
  const double seconds = Steps(schedule, table, costs).run();
  require(std::isfinite(seconds), "the costs are so large that the step's time is not a number any more");
  return seconds;
}

double bubble_fraction(const LongSchedule& schedule, const CostTable& costs, double step_seconds) {
  std::vector<double> busy = costs.update_seconds;
  const auto add = [&](int worker, int begin, int end, double times) {
    for (int index = begin; index < end; ++index)
      busy[worker] += times * costs.seconds(schedule.action({worker, index}));
  };
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    add(worker, 0, static_cast<int>(schedule.written.workers[worker].size()), 1);
    for (const LongSchedule::Round& round : schedule.rounds) {
      add(worker, round.worker_begin[worker], round.worker_end[worker], static_cast<double>(schedule.num_added_rounds));
    }
  }
  double idle = 0;
  for (const double seconds : busy) idle += std::max(0.0, step_seconds - seconds);
  const double total = static_cast<double>(busy.size()) * step_seconds;
  return total > 0 ? idle / total : 0;
}

}  // namespace

double forecast_seconds(const LongSchedule& schedule, const Costs& costs) {
  const FlowTable table = make_flow_table(schedule.written, costs.routes);
  return checked_seconds(schedule, table, make_cost_table(schedule.written, table, costs));
}

Forecast forecast(const LongSchedule& schedule, const Costs& costs) {
  const FlowTable table = make_flow_table(schedule.written, costs.routes);
  const CostTable cost_table = make_cost_table(schedule.written, table, costs);
  Forecast result;
  result.step_seconds = checked_seconds(schedule, table, cost_table);
  result.bubble_fraction = bubble_fraction(schedule, cost_table, result.step_seconds);
  result.peak_bytes = peak_bytes_by_worker(schedule, stage_bytes(costs));
  return result;
}

}  // namespace gpipe::detail
