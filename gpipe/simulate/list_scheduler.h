// List scheduling: an order of actions for given costs, made by letting every worker take what is ready.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulate/cost_table.h"

namespace gpipe::detail {

// What a worker takes when several actions are ready.
struct ListPolicy {
  enum class Kind { kBackward, kForward, kInTurn };          // first; a weight gradient only if nothing else is ready
  enum class Stage { kLater, kEarlier, kOldestMicroBatch };  // among those of one kind
  Kind kind = Kind::kBackward;
  Stage stage = Stage::kLater;
  // A weight gradient is not begun if something else comes within this share of the time it takes.
  double patience = 0;
  bool splits_backward = true;
  std::vector<int> max_live;  // per worker: so many held activations and it begins no micro-batch on its first stage
};

// Note [List scheduling]
// ~~~~~~~~~~~~~~~~~~~~~~
// The worker that can start something first takes one of the actions that are ready for it then, and so on until all
// have run. Of each kind, a stage takes the micro-batches in ascending order; so the order is canonical, and each flow
// is received in the order it is sent. No worker refuses anything but the forward of its first stage, and that only
// while it holds activations, which it gets rid of without that forward: so there is always something to take, and no
// deadlock.
//
// `placement` has the size of the schedule and the worker of each stage. A recompute counts as a part of the backward
// that it comes before, if `recomputes` its stage; the schedule is made without it.
Schedule list_schedule(Schedule placement, const FlowTable& table, const CostTable& costs,
                       const std::vector<bool>& recomputes, const ListPolicy& policy);

}  // namespace gpipe::detail
