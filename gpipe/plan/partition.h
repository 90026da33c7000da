// Partition: the exact best way to cut a chain of layers into consecutive stages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/liveness.h"

namespace gpipe {

enum class Objective {
  kMakespan,      // sum(t) + (M-1)·max(t) over the stages' seconds t: a step of gpipe or 1f1b
  kSlowestStage,  // max(t); among those, the least sum(t)
};

struct PartitionOptions {
  int num_stages = 1;
  int num_micro_batches = 1;
  Objective objective = Objective::kMakespan;
  bool recompute = false;                // a stage's time includes a second forward
  LinkCosts link;
  std::vector<double> worker_speed;      // one per stage, 1 = as profiled; empty = 1 for all
  std::optional<std::int64_t> memory_limit_bytes;  // per stage
  std::vector<std::vector<Live>> live;   // per stage, what it holds at once: peak_live_by_stage; empty = one micro-batch each
  int optimizer_slots = 2;               // tensors of optimizer state per weight: 0 SGD, 1 momentum or RMSprop, 2 Adam
};

struct PartitionStage {
  int num_layers = 0;
  double seconds = 0;         // one micro-batch: compute and the messages the stage sends
  std::int64_t bytes = 0;     // peak
};

struct Partition {
  std::vector<PartitionStage> stages;
  double slowest_seconds = 0;
  double makespan_seconds = 0;  // sum(t) + (M-1)·max(t)
};

// Throws InvalidArgument for bad counts (more stages than layers among them) and InfeasibleError when no partition fits
// the memory limit. O(stages · layers²).
Partition partition(const Profile& profile, const PartitionOptions& options);

}  // namespace gpipe
