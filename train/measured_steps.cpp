#include "train/measured_steps.h"

#include <algorithm>
#include <cstddef>

namespace gpipe::train {

void MeasuredSteps::add(const Timeline& timeline, const StepOverhead& overhead) {
  if (!has_begun_) {
    has_begun_ = true;
    return;
  }
  if (timeline.num_micro_batches < num_micro_batches_) return;
  if (timeline.num_micro_batches > num_micro_batches_) {
    *this = {};
    has_begun_ = true;
    num_micro_batches_ = timeline.num_micro_batches;
  }
  ++num_steps_;
  stages_.resize(timeline.num_stages);
  double busy = 0;
  double busiest = 0;
  for (const WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) {
      ActionTimes& times = stages_[span.action.stage][static_cast<std::size_t>(span.action.kind)];
      times.seconds += span.end_seconds - span.start_seconds;
      ++times.count;
    }
    if (worker.processor_seconds > 0) {
      processor_seconds_ += worker.processor_seconds;
      timed_seconds_ += worker.busy_seconds - (worker.update_end_seconds - worker.update_start_seconds);
    }
    busy += worker.busy_seconds;
    busiest = std::max(busiest, worker.busy_seconds);
  }
  makespan_seconds_ += timeline.makespan_seconds;
  worker_seconds_ += timeline.num_workers() * timeline.makespan_seconds;
  idle_seconds_ += timeline.num_workers() * timeline.makespan_seconds - busy;
  imbalance_seconds_ += timeline.num_workers() * busiest - busy;
  overhead_.data_seconds += overhead.data_seconds;
  overhead_.update_seconds += overhead.update_seconds;
}

}  // namespace gpipe::train
