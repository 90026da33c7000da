#include "gpipe/report/timeline.h"

#include <algorithm>

namespace gpipe {

double& Breakdown::seconds_of(ActionKind kind) {
  if (kind == ActionKind::kRecompute) return recompute_seconds;
  return kind == ActionKind::kUpdate ? weight_update_seconds : useful_seconds;
}

void add_up(Timeline& timeline) {
  timeline.makespan_seconds = 0;
  for (WorkerTimeline& worker : timeline.workers) {
    worker.busy_seconds = worker.update_end_seconds - worker.update_start_seconds;
    for (const Span& span : worker.spans) worker.busy_seconds += span.end_seconds - span.start_seconds;
    const double end = worker.spans.empty() ? 0 : worker.spans.back().end_seconds;
    timeline.makespan_seconds = std::max({timeline.makespan_seconds, end, worker.update_end_seconds});
  }
  double idle = 0;
  for (WorkerTimeline& worker : timeline.workers) {
    worker.idle_seconds = std::max(0.0, timeline.makespan_seconds - worker.busy_seconds);
    idle += worker.idle_seconds;
  }
  const double total = timeline.num_workers() * timeline.makespan_seconds;
  timeline.bubble_fraction = total > 0 ? idle / total : 0;
}

}  // namespace gpipe
