#include "gpipe/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "gpipe/error.h"

namespace gpipe {
namespace {

constexpr const char* kRemedy = "compare timelines of the same schedule";

double ratio_of(double predicted, double measured) {
  if (measured == 0) return predicted == 0 ? 1 : std::numeric_limits<double>::infinity();
  return predicted / measured;
}

void check_equal(const std::string& what, std::int64_t predicted, std::int64_t measured) {
  if (predicted == measured) return;
  throw InvalidArgument(
      fmt::format("the prediction has {} {}, the measurement {}; {}", predicted, what, measured, kRemedy));
}

void check_actions(int worker, const std::vector<Span>& predicted, const std::vector<Span>& measured, int num_stages) {
  for (std::size_t index = 0; index < std::min(predicted.size(), measured.size()); ++index) {
    const Action& action = predicted[index].action;
    if (action != measured[index].action) {
      throw InvalidArgument(fmt::format("action {} of worker {} is {} in the prediction, {} in the measurement; {}",
                                        index, worker, to_string(action), to_string(measured[index].action), kRemedy));
    }
    if (action.stage < 0 || action.stage >= num_stages) {
      throw InvalidArgument(
          fmt::format("action {} of worker {} is {}, of a stage that does not exist; expected 0 to {}", index, worker,
                      to_string(action), num_stages - 1));
    }
  }
  check_equal(fmt::format("actions on worker {}", worker), static_cast<std::int64_t>(predicted.size()),
              static_cast<std::int64_t>(measured.size()));
}

void check_same_schedule(const Timeline& predicted, const Timeline& measured) {
  check_equal("workers", predicted.num_workers(), measured.num_workers());
  check_equal("stages", predicted.num_stages, measured.num_stages);
  check_equal("micro-batches", predicted.num_micro_batches, measured.num_micro_batches);
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    check_actions(worker, predicted.workers[worker].spans, measured.workers[worker].spans, predicted.num_stages);
  }
}

void check_peaks(const StagePeakBytes& peak_bytes, int num_stages) {
  const auto num_entries = static_cast<std::size_t>(num_stages);
  const bool is_absent = peak_bytes.predicted.empty() && peak_bytes.measured.empty();
  if (is_absent || (peak_bytes.predicted.size() == num_entries && peak_bytes.measured.size() == num_entries)) return;
  throw InvalidArgument(
      fmt::format("peak_bytes has {} predicted and {} measured entries for {} stages; expected one per stage, or none",
                  peak_bytes.predicted.size(), peak_bytes.measured.size(), num_stages));
}

std::vector<StageComparison> compare_stages(const Timeline& predicted, const Timeline& measured) {
  std::vector<std::array<KindComparison, kNumActionKinds>> sums(predicted.num_stages);
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    for (std::size_t index = 0; index < predicted.workers[worker].spans.size(); ++index) {
      const Span& forecast = predicted.workers[worker].spans[index];
      const Span& actual = measured.workers[worker].spans[index];
      KindComparison& sum = sums[forecast.action.stage][static_cast<std::size_t>(forecast.action.kind)];
      sum.kind = forecast.action.kind;
      ++sum.num_actions;
      sum.total_seconds.predicted += forecast.end_seconds - forecast.start_seconds;
      sum.total_seconds.measured += actual.end_seconds - actual.start_seconds;
    }
  }
  std::vector<StageComparison> stages(sums.size());
  for (std::size_t stage = 0; stage < sums.size(); ++stage) {
    for (KindComparison& sum : sums[stage]) {
      if (sum.num_actions == 0) continue;
      sum.mean_seconds = {sum.total_seconds.predicted / sum.num_actions, sum.total_seconds.measured / sum.num_actions};
      stages[stage].kinds.push_back(sum);
    }
  }
  return stages;
}

WorkerComparison compare_workers(const WorkerTimeline& predicted, const WorkerTimeline& measured) {
  WorkerComparison worker;
  worker.busy_seconds = {predicted.busy_seconds, measured.busy_seconds};
  worker.idle_seconds = {predicted.idle_seconds, measured.idle_seconds};
  worker.update_seconds = {predicted.update_end_seconds - predicted.update_start_seconds,
                           measured.update_end_seconds - measured.update_start_seconds};
  // Zero is unknown, not nothing.
  if (predicted.peak_bytes > 0 && measured.peak_bytes > 0) {
    worker.peak_bytes = ComparedBytes{predicted.peak_bytes, measured.peak_bytes};
  }
  return worker;
}

}  // namespace

double Compared::ratio() const { return ratio_of(predicted, measured); }

double ComparedBytes::ratio() const { return ratio_of(static_cast<double>(predicted), static_cast<double>(measured)); }

Comparison compare(const Timeline& predicted, const Timeline& measured, const StagePeakBytes& peak_bytes) {
  check_same_schedule(predicted, measured);
  check_peaks(peak_bytes, predicted.num_stages);
  Comparison comparison;
  comparison.name = predicted.name;
  comparison.num_micro_batches = predicted.num_micro_batches;
  comparison.step_seconds = {predicted.makespan_seconds, measured.makespan_seconds};
  comparison.bubble_fraction = {predicted.bubble_fraction, measured.bubble_fraction};
  comparison.stages = compare_stages(predicted, measured);
  for (std::size_t stage = 0; stage < peak_bytes.predicted.size(); ++stage) {
    comparison.stages[stage].peak_bytes = ComparedBytes{peak_bytes.predicted[stage], peak_bytes.measured[stage]};
  }
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    comparison.workers.push_back(compare_workers(predicted.workers[worker], measured.workers[worker]));
  }
  return comparison;
}

}  // namespace gpipe
