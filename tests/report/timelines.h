// Timelines for the tests of the drawings, made from hand-written action lists by the plainest of simulators.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/report/timeline.h"

namespace gpipe::test {

constexpr ActionKind F = ActionKind::kForward;
constexpr ActionKind R = ActionKind::kRecompute;
constexpr ActionKind B = ActionKind::kBackward;
constexpr ActionKind I = ActionKind::kInputGrad;
constexpr ActionKind W = ActionKind::kWeightGrad;

using ActionLists = std::vector<std::vector<Action>>;  // one a worker

// F, R, I and W take one `unit`, B two; messages take none. The optimizer step follows each worker's last action.
struct Seconds {
  double unit = 1;
  double update = 0;
  double of(ActionKind kind) const { return kind == B ? 2 * unit : unit; }
};

// Runs every action as early as its worker and its input allow. REQUIRES: the lists do not deadlock.
inline Timeline run(const std::string& name, const ActionLists& lists, const Seconds& seconds = {}) {
  Timeline timeline;
  timeline.name = name;
  timeline.workers.resize(lists.size());
  for (const auto& list : lists) {
    for (const Action& action : list) {
      timeline.num_stages = std::max(timeline.num_stages, action.stage + 1);
      timeline.num_micro_batches = std::max(timeline.num_micro_batches, action.micro_batch + 1);
    }
  }
  std::map<std::tuple<bool, int, int>, double> done;  // (is a gradient, stage, micro-batch) -> end
  const auto ready = [&](const Action& action, double& start) {
    if (action.kind == R || action.kind == W) return true;
    const bool gradient = action.kind != F;
    const int from = gradient ? action.stage + 1 : action.stage - 1;
    if (from < 0 || from >= timeline.num_stages) return true;
    const auto input = done.find({gradient, from, action.micro_batch});
    if (input == done.end()) return false;
    start = std::max(start, input->second);
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t worker = 0; worker < lists.size(); ++worker) {
      std::vector<Span>& spans = timeline.workers[worker].spans;
      while (spans.size() < lists[worker].size()) {
        const Action& action = lists[worker][spans.size()];
        double start = spans.empty() ? 0 : spans.back().end_seconds;
        if (!ready(action, start)) break;
        spans.push_back({action, start, start + seconds.of(action.kind)});
        if (action.kind != R && action.kind != W) {
          done[{action.kind != F, action.stage, action.micro_batch}] = spans.back().end_seconds;
        }
        progress = true;
      }
    }
  }
  double busy = 0;
  for (WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) worker.busy_seconds += span.end_seconds - span.start_seconds;
    worker.update_start_seconds = worker.spans.empty() ? 0 : worker.spans.back().end_seconds;
    worker.update_end_seconds = worker.update_start_seconds + seconds.update;
    worker.busy_seconds += seconds.update;
    busy += worker.busy_seconds;
    timeline.makespan_seconds = std::max(timeline.makespan_seconds, worker.update_end_seconds);
  }
  for (WorkerTimeline& worker : timeline.workers) worker.idle_seconds = timeline.makespan_seconds - worker.busy_seconds;
  const double total = timeline.makespan_seconds * timeline.num_workers();
  timeline.bubble_fraction = total > 0 ? 1 - busy / total : 0;
  for (int stage = 0; stage + 1 < timeline.num_stages; ++stage) {
    timeline.flows.push_back({FlowKind::kActivation, stage, stage + 1});
    timeline.flows.push_back({FlowKind::kGradient, stage + 1, stage});
  }
  return timeline;
}

inline Timeline gpipe_timeline(int num_stages, int num_micro_batches, const Seconds& seconds = {}) {
  ActionLists lists(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    for (int m = 0; m < num_micro_batches; ++m) lists[stage].push_back({F, stage, m});
    for (int m = 0; m < num_micro_batches; ++m) {
      if (m > 0) lists[stage].push_back({R, stage, m});
      lists[stage].push_back({B, stage, m});
    }
  }
  return run("gpipe", lists, seconds);
}

inline Timeline one_f_one_b_timeline(int num_stages, int num_micro_batches, const Seconds& seconds = {}) {
  ActionLists lists(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    const int ahead = std::min(num_stages - stage, num_micro_batches);
    for (int m = 0; m < ahead; ++m) lists[stage].push_back({F, stage, m});
    for (int m = 0; m < num_micro_batches; ++m) {
      lists[stage].push_back({B, stage, m});
      if (m + ahead < num_micro_batches) lists[stage].push_back({F, stage, m + ahead});
    }
  }
  return run("1f1b", lists, seconds);
}

// Like 1F1B with the backward split; stage s puts its weight gradients off by s micro-batches.
inline Timeline zero_bubble_timeline(int num_stages, int num_micro_batches, const Seconds& seconds = {}) {
  ActionLists lists(num_stages);
  for (int stage = 0; stage < num_stages; ++stage) {
    const int ahead = std::min(num_stages - stage, num_micro_batches);
    for (int m = 0; m < ahead; ++m) lists[stage].push_back({F, stage, m});
    for (int m = 0; m < num_micro_batches; ++m) {
      lists[stage].push_back({I, stage, m});
      if (m >= stage) lists[stage].push_back({W, stage, m - stage});
      if (m + ahead < num_micro_batches) lists[stage].push_back({F, stage, m + ahead});
    }
    for (int m = std::max(0, num_micro_batches - stage); m < num_micro_batches; ++m)
      lists[stage].push_back({W, stage, m});
  }
  return run("zb-h1", lists, seconds);
}

// Two stages a worker, w and w + num_workers, all forwards first.
inline Timeline two_chunk_timeline(int num_workers, int num_micro_batches, const Seconds& seconds = {}) {
  ActionLists lists(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    for (const int stage : {worker, worker + num_workers}) {
      for (int m = 0; m < num_micro_batches; ++m) lists[worker].push_back({F, stage, m});
    }
    for (const int stage : {worker + num_workers, worker}) {
      for (int m = 0; m < num_micro_batches; ++m) lists[worker].push_back({B, stage, m});
    }
  }
  return run("interleaved", lists, seconds);
}

// `num_spans` back-to-back forwards and backwards on each worker, without asking the simulator.
inline Timeline long_timeline(int num_workers, int num_spans) {
  Timeline timeline;
  timeline.name = "long";
  timeline.num_stages = num_workers;
  timeline.num_micro_batches = num_spans / 2;
  timeline.workers.resize(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    const double start = worker % 4;
    double now = start;
    for (int index = 0; index < num_spans; ++index) {
      const double length = index % 2 == 0 ? 1 : 2;
      timeline.workers[worker].spans.push_back({{index % 2 == 0 ? F : B, worker, index / 2}, now, now + length});
      now += length;
    }
    timeline.workers[worker].busy_seconds = now - start;
    timeline.makespan_seconds = std::max(timeline.makespan_seconds, now);
  }
  return timeline;
}

}  // namespace gpipe::test
