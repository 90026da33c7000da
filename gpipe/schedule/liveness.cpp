#include "gpipe/schedule/liveness.h"

#include <algorithm>

#include "gpipe/wide_bytes.h"

namespace gpipe {
namespace {

// Which (stage, micro-batch) pairs are recomputed: their forward keeps only the stage's input.
std::vector<bool> recomputed(const Schedule& schedule) {
  std::vector<bool> table(static_cast<std::size_t>(schedule.num_stages) * schedule.num_micro_batches);
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind != ActionKind::kRecompute) continue;
      table[static_cast<std::size_t>(action.stage) * schedule.num_micro_batches + action.micro_batch] = true;
    }
  }
  return table;
}

// Walks one worker's program and calls `on_action(stage, at_work, change)`: whether the micro-batch at work was held with
// its activations, with its input, or not at all; and how the action changes what the stage holds when it ends.
enum class AtWork { kNew, kActivations, kInput };

template <typename OnAction>
void walk(const Schedule& schedule, const std::vector<bool>& is_recomputed, int worker, const OnAction& on_action) {
  for (const Action& action : schedule.workers[worker]) {
    const bool again =
        is_recomputed[static_cast<std::size_t>(action.stage) * schedule.num_micro_batches + action.micro_batch];
    if (action.kind == ActionKind::kForward) {
      on_action(action.stage, AtWork::kNew, again ? Live{0, 1} : Live{1, 0});
    } else if (action.kind == ActionKind::kRecompute) {
      on_action(action.stage, AtWork::kInput, Live{1, -1});
    } else {
      on_action(action.stage, AtWork::kActivations, Live{makes_weight_grad(action.kind) ? -1 : 0, 0});
    }
  }
}

bool covers(const Live& a, const Live& b) { return a.activations >= b.activations && a.inputs >= b.inputs; }

void add_peak(std::vector<Live>& peaks, const Live& live) {
  for (const Live& peak : peaks) {
    if (covers(peak, live)) return;
  }
  peaks.erase(std::remove_if(peaks.begin(), peaks.end(), [&](const Live& peak) { return covers(live, peak); }),
              peaks.end());
  peaks.push_back(live);
}

}  // namespace

std::vector<std::vector<Live>> peak_live_by_stage(const Schedule& schedule) {
  std::vector<std::vector<Live>> peaks(schedule.num_stages);
  if (!schedule.has_backward()) return std::vector<std::vector<Live>>(schedule.num_stages, {Live{1, 0}});
  const std::vector<bool> is_recomputed = recomputed(schedule);
  std::vector<Live> live(schedule.num_stages);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    walk(schedule, is_recomputed, worker, [&](int stage, AtWork at_work, const Live& change) {
      Live& held = live[stage];
      add_peak(peaks[stage], {held.activations + (at_work == AtWork::kActivations ? 0 : 1),
                              held.inputs - (at_work == AtWork::kInput ? 1 : 0)});
      held.activations += change.activations;
      held.inputs += change.inputs;
    });
  }
  return peaks;
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
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    int live = 0;
    int peak = 0;
    walk(schedule, is_recomputed, worker, [&](int, AtWork, const Live& change) {
      live += change.activations;
      peak = std::max(peak, live);
    });
    peaks[worker] = static_cast<double>(peak) / num_stages[worker];
  }
  return peaks;
}

std::vector<std::int64_t> peak_bytes_by_worker(const Schedule& schedule, const std::vector<StageBytes>& stages) {
  std::vector<WideBytes> fixed(schedule.num_workers(), 0);
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    fixed[schedule.worker_of_stage[stage]] += stages[stage].static_bytes;
  }
  const bool backward = schedule.has_backward();
  const std::vector<bool> is_recomputed = recomputed(schedule);
  std::vector<std::int64_t> peaks;
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    WideBytes live = 0;
    WideBytes peak = 0;
    walk(schedule, is_recomputed, worker, [&](int stage, AtWork at_work, const Live& change) {
      const StageBytes& bytes = stages[stage];
      const WideBytes held = WideBytes{bytes.activation_bytes} + bytes.kept_input_bytes;
      const WideBytes others = live - (at_work == AtWork::kActivations ? held : 0) -
                               (at_work == AtWork::kInput ? WideBytes{bytes.input_bytes} : 0);
      const bool is_backward = at_work == AtWork::kActivations;
      const std::int64_t working = is_backward ? bytes.backward_working_bytes : bytes.forward_working_bytes;
      const std::int64_t input = is_backward ? bytes.kept_input_bytes : bytes.input_bytes;
      peak = std::max(peak, others + std::max(working, bytes.activation_bytes) + input);
      if (backward) live += change.activations * held + WideBytes{change.inputs} * bytes.input_bytes;
    });
    peaks.push_back(saturated(fixed[worker] + peak));
  }
  return peaks;
}

}  // namespace gpipe
