// The planner: tries micro-batches, schedules, recompute modes and partitions in the simulator, and takes the fastest
// step that fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/plan/plan.h"

namespace gpipe {

struct PlanCandidate {
  std::string schedule;
  int chunks = 1;
  int num_micro_batches = 1;
  std::string recompute;              // a mode, "per stage", or "per layer" if a stage drops some of its layers
  double step_seconds = 0;            // simulated; of one that fits
  std::int64_t fullest_bytes = 0;     // of the fullest worker; of one that fits
  int fullest_worker = 0;             // the first of them
  std::int64_t missing_bytes = 0;     // above 0: no partition fits, and the best lacks these on a worker
  std::vector<int> layers_per_stage;  // of one that fits
};

struct PlanSearch {
  Plan best;
  std::vector<PlanCandidate> candidates;  // `best` first, the faster before the slower, then those that do not fit
};

// Note [Candidates]
// What is left to choose is tried in all combinations:
//   num_micro_batches  1, 2, 4, ... up to mini_batch_samples, at most 4096
//   schedule           1f1b, gpipe, and interleaved with 2 to 4 chunks where there are enough layers and it exists
//   recompute          never, except-last, always, each for all stages; and per stage, the least that fits
// Each of them is cut exactly, for the objective, and simulated; per stage, so that the slowest stage is the fastest.
// These cuts are then improved in the simulator: over all partitions if these are few, otherwise layer by layer over
// the boundaries. So is the one cut if nothing is left to choose, unless the objective is another than the step. A
// stage that fits without recompute does not recompute: a step never gets faster by doing more. With several stages a
// worker, it takes the modes that recompute the least seconds.
//
// If recompute is left to choose and memory is limited, the four nearest choices of micro-batches and schedule are then
// looked at for stages that drop some of their layers: see Note [Rematerialized stages]. The least simulated step wins;
// among equals fewer micro-batches, then the order above.
//
// The result depends on nothing but the arguments. Throws InfeasibleError if no candidate fits, and InvalidArgument as
// partitioned_plan does; to choose num_micro_batches takes mini_batch_samples.
PlanSearch search_plans(const Profile& profile, const PlanOptions& options);

// What PlanOptions::schedule can be: a schedule's name, "auto" or "search".
std::vector<std::string> plannable_schedule_names();

// The best of them.
Plan plan(const Profile& profile, const PlanOptions& options);

// A table of the candidates, best first: predicted step, fullest worker, and what those lack that do not fit.
std::string explain(const PlanSearch& search);

}  // namespace gpipe
