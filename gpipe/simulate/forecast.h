// Forecast: how long a step of a schedule takes and what it holds, without when each action runs.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/schedule/long_schedule.h"

namespace gpipe::detail {

struct Forecast {
  double step_seconds = 0;
  double bubble_fraction = 0;            // idle / (workers x step)
  std::vector<std::int64_t> peak_bytes;  // per worker
};

// Note [Steady state]
// ~~~~~~~~~~~~~~~~~~~
// The same as `simulate`, to rounding, in a time that hardly depends on the number of micro-batches. Everything that a
// round leaves behind (when workers are free, when messages arrive) is a maximum of sums of what it found: x' = A(x),
// where A is convex and, if everything comes later by the same time, so is what it makes. Rounds are played until x
// grows by the same d in c rounds as in the c before them. If it still does n times c rounds later, which one look
// there tells, it has done so all the time between: a convex function that meets a line three times does not leave it
// in between. So those rounds are not played. Where it does not, because a slow worker far away makes itself felt only
// then, the place is found by halving.
//
// Note [Phases]
// ~~~~~~~~~~~~~
// In a phase, a worker does for each micro-batch what takes it p seconds. It ends the one with number m, counted from
// the first of the phase, at the largest of "began + (m + 1) p" and, over all j up to m, "message j arrived + its share
// of p + (m - j) p". If the arrivals are a convex sequence, so is that expression in j, and its largest value is at one
// of its two ends; then the ends are the largest of two convex sequences, and convex again. The first arrivals are
// convex, so all are. A link is a worker that does nothing but carry: a worker puts all its messages of a micro-batch
// for one link at the same time, at the end of its F or of its B, so that they are one load. So it is enough to know
// the first and the last micro-batch of those between which nothing is written: nothing has to be played for the ones
// between, and the result is exact.
//
// Throws InvalidArgument as `simulate` does.
Forecast forecast(const LongSchedule& schedule, const Costs& costs);

// The time of the step alone.
double forecast_seconds(const LongSchedule& schedule, const Costs& costs);

}  // namespace gpipe::detail
