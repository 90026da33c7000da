// Measured steps: what the actions of each stage took, over the steps of a training that are alike.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gpipe/report/timeline.h"
#include "gpipe/schedule/action.h"

namespace gpipe::train {

struct ActionTimes {
  double seconds = 0;  // of all of them
  std::int64_t count = 0;
  double mean() const { return count > 0 ? seconds / static_cast<double>(count) : 0; }
};

// A stage's actions by their kind.
using StageTimes = std::array<ActionTimes, kNumActionKinds>;

// What a step takes besides its actions.
struct StepOverhead {
  double data_seconds = 0;  // waiting for the batch
  double update_seconds = 0;
};

// Adds up steps. The first one is left out, since it profiles and touches all memory for the first time; so are steps
// with fewer micro-batches than another one had, such as that of the rest of an epoch.
class MeasuredSteps {
 public:
  void add(const Timeline& timeline, const StepOverhead& overhead);

  int num_steps() const { return num_steps_; }
  int num_micro_batches() const { return num_micro_batches_; }
  const std::vector<StageTimes>& stages() const { return stages_; }
  // Of a step, in the mean. REQUIRES: there are steps.
  double makespan_seconds() const { return makespan_seconds_ / num_steps_; }
  StepOverhead overhead() const { return {overhead_.data_seconds / num_steps_, overhead_.update_seconds / num_steps_}; }
  // Idle seconds of all workers, divided by workers x makespan: all of them, and those that only an imbalance causes.
  double bubble_fraction() const { return idle_seconds_ / worker_seconds_; }
  double imbalance_fraction() const { return imbalance_seconds_ / worker_seconds_; }
  // Of the time of their actions, how much the workers had a processor. 1 if that was not measured.
  double processor_fraction() const { return timed_seconds_ > 0 ? processor_seconds_ / timed_seconds_ : 1; }

 private:
  bool has_begun_ = false;
  int num_steps_ = 0;
  int num_micro_batches_ = 0;
  std::vector<StageTimes> stages_;
  StepOverhead overhead_;
  double makespan_seconds_ = 0;
  double worker_seconds_ = 0;
  double idle_seconds_ = 0;
  double imbalance_seconds_ = 0;
  double processor_seconds_ = 0;  // of workers for which it was measured, and the time of their actions
  double timed_seconds_ = 0;
};

}  // namespace gpipe::train
