// Timeline: when each action ran, simulated or measured. One type for both, so that they can be compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/schedule/action.h"
#include "gpipe/schedule/flow.h"

namespace gpipe {

struct Span {
  Action action;
  double start_seconds = 0;
  double end_seconds = 0;
};

struct WorkerTimeline {
  std::vector<Span> spans;  // in program order: starts ascending, no overlap
  double update_start_seconds = 0;
  double update_end_seconds = 0;  // the optimizer step; equal to its start when there is none
  double busy_seconds = 0;        // actions and optimizer step
  double idle_seconds = 0;        // makespan - busy
  // Processor time of the worker's own thread in its actions; less than they took if the thread had to wait for a
  // processor, or for a device. 0 if it was not measured.
  double processor_seconds = 0;
  // Activations are counted in micro-batches of the worker's whole share of the model: with v chunks a worker, one
  // chunk's activations count 1/v.
  double peak_activations = 0;
  std::int64_t peak_bytes = 0;
};

// Where workers x makespan went, in seconds summed over the workers; the rows of Table 4 of the GPipe paper, and they
// add up to it exactly.
struct Breakdown {
  double useful_seconds = 0;          // F, B, I, W
  double recompute_seconds = 0;       // R
  double weight_update_seconds = 0;   // optimizer step
  double load_imbalance_seconds = 0;  // what the other workers would idle if the busiest one never waited
  double bubble_seconds = 0;          // what the schedule adds to that with free communication
  double communication_seconds = 0;   // what latency, bandwidth and full channels add on top

  // Where the time of such an action counts.
  double& seconds_of(ActionKind kind);
};

// Points at workers[worker].spans[index].
struct SpanRef {
  int worker = 0;
  int index = 0;
};

struct Timeline {
  std::string name;  // of the schedule
  int num_stages = 0;
  int num_micro_batches = 0;
  double makespan_seconds = 0;
  double bubble_fraction = 0;  // idle / (workers x makespan)
  std::vector<WorkerTimeline> workers;
  Breakdown breakdown;
  std::vector<SpanRef> critical_path;  // first to last; each waited for the one before it
  std::vector<Flow> flows;             // what travelled between the stages
  std::vector<std::string> notes;      // what did not go as the schedule says, in sentences; of a measured one
  int num_workers() const { return static_cast<int>(workers.size()); }
};

// Fills the makespan, the bubble fraction and every worker's busy and idle seconds from the spans and optimizer steps.
void add_up(Timeline& timeline);

}  // namespace gpipe
