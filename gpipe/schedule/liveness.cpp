#include "gpipe/schedule/liveness.h"

#include <algorithm>

#include "gpipe/schedule/long_schedule.h"
#include "gpipe/text/byte_text.h"

namespace gpipe {
namespace {

using detail::LongSchedule;
using detail::peak_bytes_by_worker;
using detail::peak_live_by_stage;
using detail::recomputed;
using detail::saturated;
using detail::WideBytes;

// A schedule, and its rounds that are played so many times more.
struct Program {
  const Schedule& schedule;
  const std::vector<bool>& is_recomputed;
  const std::vector<LongSchedule::Round>* rounds = nullptr;  // if some are added
  std::int64_t num_added = 0;
};

Program program_of(const LongSchedule& schedule) {
  return {schedule.written, schedule.is_recomputed, &schedule.rounds, schedule.num_added_rounds};
}

// What is held after a round that was played so many times more.
template <typename Count>
void hold_more(Count& held, const Count& before, std::int64_t times) {
  held += (held - before) * times;
}
void hold_more(std::vector<Live>& held, const std::vector<Live>& before, std::int64_t times) {
  const auto more = [times](int now, int then) { return static_cast<int>(now + (now - then) * times); };
  for (std::size_t stage = 0; stage < held.size(); ++stage) {
    held[stage] = {more(held[stage].activations, before[stage].activations),
                   more(held[stage].inputs, before[stage].inputs), more(held[stage].deferred, before[stage].deferred)};
  }
}

// How the micro-batch of an action was held before it, and how it is held after it.
Live held_before(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kUpdate:
      return {};
    case ActionKind::kRecompute:
      return {0, 1, 0};
    case ActionKind::kWeightGrad:
      return {0, 0, 1};
    case ActionKind::kBackward:
    case ActionKind::kInputGrad:
      break;
  }
  return {1, 0, 0};
}
Live held_after(ActionKind kind, bool is_recomputed) {
  if (makes_weight_grad(kind)) return {};
  if (kind == ActionKind::kInputGrad) return {0, 0, 1};
  return kind == ActionKind::kForward && is_recomputed ? Live{0, 1, 0} : Live{1, 0, 0};
}
Live::Work work_of(ActionKind kind) {
  if (kind == ActionKind::kInputGrad) return Live::Work::kInputGrad;
  return kind == ActionKind::kWeightGrad ? Live::Work::kWeightGrad : Live::Work::kWhole;
}

// Walks one worker's program and calls `on_action(action, before, after)`, with how its micro-batch was held before it,
// and how it is held after it. `held` is what `on_action` counts. Of rounds that are added, only the last is walked: it
// holds most, or what the first one held.
template <typename Held, typename OnAction>
void walk(const Program& program, int worker, Held& held, const OnAction& on_action) {
  const Schedule& schedule = program.schedule;
  const std::vector<Action>& actions = schedule.workers[worker];
  const auto play = [&](int begin, int end) {
    for (int index = begin; index < end; ++index) {
      const Action& action = actions[index];
      if (action.kind == ActionKind::kUpdate) continue;  // in the memory that the weights and gradients have anyway
      const bool again =
          program
              .is_recomputed[static_cast<std::size_t>(action.stage) * schedule.num_micro_batches + action.micro_batch];
      on_action(action, held_before(action.kind), held_after(action.kind, again));
    }
  };
  int at = 0;
  for (std::size_t round = 0; program.num_added > 0 && round < program.rounds->size(); ++round) {
    const int begin = (*program.rounds)[round].worker_begin[worker];
    const int end = (*program.rounds)[round].worker_end[worker];
    play(at, begin);
    const Held before = held;
    play(begin, end);
    hold_more(held, before, program.num_added - 1);
    play(begin, end);
    at = end;
  }
  play(at, static_cast<int>(actions.size()));
}

bool covers(const Live& a, const Live& b) {
  return a.work == b.work && a.activations >= b.activations && a.inputs >= b.inputs && a.deferred >= b.deferred;
}

void add_peak(std::vector<Live>& peaks, const Live& live) {
  for (const Live& peak : peaks) {
    if (covers(peak, live)) return;
  }
  peaks.erase(std::remove_if(peaks.begin(), peaks.end(), [&](const Live& peak) { return covers(live, peak); }),
              peaks.end());
  peaks.push_back(live);
}

std::vector<std::vector<Live>> peak_live(const Program& program) {
  const Schedule& schedule = program.schedule;
  std::vector<std::vector<Live>> peaks(schedule.num_stages);
  if (!schedule.has_backward()) return std::vector<std::vector<Live>>(schedule.num_stages, {Live{1, 0}});
  std::vector<Live> live(schedule.num_stages);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    walk(program, worker, live, [&](const Action& action, const Live& before, const Live& after) {
      Live& held = live[action.stage];
      held.activations -= before.activations;
      held.inputs -= before.inputs;
      held.deferred -= before.deferred;
      add_peak(peaks[action.stage], {held.activations + 1, held.inputs, held.deferred, work_of(action.kind)});
      held.activations += after.activations;
      held.inputs += after.inputs;
      held.deferred += after.deferred;
    });
  }
  return peaks;
}

// What is held of a micro-batch that is not at work.
WideBytes held_bytes(const StageBytes& stage, const Live& live) {
  const WideBytes kept = WideBytes{stage.activation_bytes} + stage.kept_input_bytes;
  return live.activations * kept + live.inputs * WideBytes{stage.input_bytes} +
         live.deferred * (stage.split ? WideBytes{stage.split->deferred_bytes} : kept);
}

// What the micro-batch at work takes.
WideBytes working_bytes(const StageBytes& stage, ActionKind kind) {
  const auto work = [&](std::int64_t working, std::int64_t input) {
    return WideBytes{std::max(working, stage.activation_bytes)} + input;
  };
  if (kind == ActionKind::kForward || kind == ActionKind::kRecompute) {
    return work(stage.forward_working_bytes, stage.input_bytes);
  }
  if (kind == ActionKind::kBackward || !stage.split) return work(stage.backward_working_bytes, stage.kept_input_bytes);
  if (kind == ActionKind::kInputGrad) return work(stage.split->input_grad_working_bytes, stage.kept_input_bytes);
  return std::max(stage.split->weight_grad_working_bytes, stage.split->deferred_bytes);
}

std::int64_t peak_bytes(const Program& program, const std::vector<StageBytes>& stages, int worker, bool backward) {
  const Schedule& schedule = program.schedule;
  WideBytes fixed = 0;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    if (schedule.worker_of_stage[stage] == worker) fixed += stages[stage].static_bytes;
  }
  WideBytes live = 0;
  WideBytes peak = 0;
  walk(program, worker, live, [&](const Action& action, const Live& before, const Live& after) {
    const StageBytes& stage = stages[action.stage];
    live -= held_bytes(stage, before);
    peak = std::max(peak, live + working_bytes(stage, action.kind));
    if (backward) live += held_bytes(stage, after);
  });
  return saturated(fixed + peak);
}

std::vector<std::int64_t> peak_bytes(const Program& program, const std::vector<StageBytes>& stages) {
  const bool backward = program.schedule.has_backward();
  std::vector<std::int64_t> peaks;
  for (int worker = 0; worker < program.schedule.num_workers(); ++worker) {
    peaks.push_back(peak_bytes(program, stages, worker, backward));
  }
  return peaks;
}

}  // namespace

std::vector<bool> detail::recomputed(const Schedule& schedule) {
  std::vector<bool> table(static_cast<std::size_t>(schedule.num_stages) * schedule.num_micro_batches);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind != ActionKind::kRecompute) continue;
      table[static_cast<std::size_t>(action.stage) * schedule.num_micro_batches + action.micro_batch] = true;
    }
  }
  return table;
}

std::vector<std::vector<Live>> peak_live_by_stage(const Schedule& schedule) {
  return peak_live({schedule, recomputed(schedule)});
}

std::vector<std::vector<Live>> detail::peak_live_by_stage(const LongSchedule& schedule) {
  return peak_live(program_of(schedule));
}

std::vector<double> peak_activations_by_worker(const Schedule& schedule) {
  std::vector<double> peaks(schedule.num_workers(), 0);
  std::vector<int> num_stages(schedule.num_workers(), 0);
  for (const int worker : schedule.worker_of_stage) ++num_stages[worker];
  if (!schedule.has_backward()) {
    for (int worker = 0; worker < schedule.num_workers(); ++worker) peaks[worker] = 1.0 / num_stages[worker];
    return peaks;
  }
  const std::vector<bool> is_recomputed = recomputed(schedule);
  const Program program = {schedule, is_recomputed};
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    std::int64_t live = 0;
    std::int64_t peak = 0;
    walk(program, worker, live, [&](const Action&, const Live& before, const Live& after) {
      live += after.activations + after.deferred - before.activations - before.deferred;
      peak = std::max(peak, live);
    });
    peaks[worker] = static_cast<double>(peak) / num_stages[worker];
  }
  return peaks;
}

std::vector<std::int64_t> peak_bytes_by_worker(const Schedule& schedule, const std::vector<StageBytes>& stages) {
  return peak_bytes({schedule, recomputed(schedule)}, stages);
}

std::vector<std::int64_t> detail::peak_bytes_by_worker(const LongSchedule& schedule,
                                                       const std::vector<StageBytes>& stages) {
  return peak_bytes(program_of(schedule), stages);
}

std::int64_t detail::peak_bytes_of_worker(const LongSchedule& schedule, const std::vector<StageBytes>& stages,
                                          int worker) {
  return peak_bytes(program_of(schedule), stages, worker, schedule.written.has_backward());
}

}  // namespace gpipe
