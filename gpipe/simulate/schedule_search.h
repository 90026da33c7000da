// Schedule search: an order of actions, made for one model and its workers, that no named schedule is faster than.
#pragma once

#include <functional>
#include <vector>

#include "gpipe/plan/plan.h"
#include "gpipe/simulate/planner.h"

namespace gpipe {

// No step is shorter than either of them.
struct StepBound {
  double busiest_worker_seconds = 0;
  double critical_path_seconds = 0;  // of one micro-batch
  double seconds() const;
};

struct ScheduleSearch {
  Plan best;  // its `order` is what was found; if nothing is faster than a named schedule, that one, without
  std::vector<PlanCandidate> named;  // the schedules that have a name, the fastest first
  StepBound of_cut;                  // for these stages on these workers
  StepBound of_any_cut;              // for this model on these workers
  double gap() const;                // of the predicted step above of_any_cut
};

// Note [Schedule search]
// ~~~~~~~~~~~~~~~~~~~~~~
// It begins with all named schedules, each with the layers and the recompute that `plan` chooses for it, and with list
// schedules (see Note [List scheduling]) of several policies, on the placements of the named ones and on waves, cut
// like the named ones. The fastest of them are then improved by random moves, of which those are kept that the
// simulator finds no slower and that keep within the memory of each worker:
//   an action on the critical path goes earlier or later on its worker
//   an input gradient and the weight gradient right behind it become one backward, or the other way round
//   a layer goes to the stage next to it
//   a stage begins or ends to recompute, if that is left to choose
//   two workers that are not alike change places
//   everything is listed anew, by another policy
// At the end, input and weight gradients that stand together become one backward wherever that costs no time. Of every
// kind, a stage runs the micro-batches in ascending order, as all generators do. The result is proven.
//
// The work is options.search_seconds, counted in simulated actions at a fixed rate: the result depends on nothing but
// the arguments, and a slow or busy machine takes longer. `on_progress` is called now and then with the share of the
// work that is done and the fastest step so far.
//
// Named schedules are tried with up to four stages a worker, and with search_keeps_ends only those that have the ends
// where they are to stay. Planning them comes on top of the work.
//
// options.schedule is not looked at. Throws InvalidArgument and InfeasibleError as `plan` does, and InvalidArgument
// without a number of micro-batches, with one of chunks, with recompute_by_stage, and for more than some 100,000
// actions.
ScheduleSearch search_schedules(const Profile& profile, const PlanOptions& options,
                                const std::function<void(double share, double step_seconds)>& on_progress = {});

}  // namespace gpipe
