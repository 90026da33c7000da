// What the generators share: checked counts, the placements of stages on workers, and the weight-gradient fill.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe::schedules {

constexpr ActionKind kF = ActionKind::kForward;
constexpr ActionKind kB = ActionKind::kBackward;
constexpr ActionKind kI = ActionKind::kInputGrad;
constexpr ActionKind kW = ActionKind::kWeightGrad;

// Empty schedules of num_workers x chunks stages. They throw InvalidArgument for a count below one or if it would take
// more than kMaxActions actions.
//
// Stage s on worker s mod K: a loop, or a line when there is one chunk.
Schedule loop_schedule(const char* name, int num_workers, int num_micro_batches, int chunks);

// The chunks go down the workers and up again in turn.
Schedule wave_schedule(const char* name, int num_workers, int num_micro_batches, int chunks);

// One wave of two chunks: stages w and 2K-1-w on worker w.
Schedule v_schedule(const char* name, int num_workers, int num_micro_batches);

// Weight-gradient fill: the list scheduling that turns an order of F and I into a zero-bubble schedule.
//
// `schedule` holds F and I only. Runs it at one time unit an action and puts a pending W, oldest first, wherever a
// worker would otherwise idle, or where its next F would make it hold more than `max_live` micro-batches (of one stage
// each, counted from F to W). The order of F and I stays as it is.
//
// Returns false, leaving `schedule` as it was, if max_live is too small for the order.
bool fill_weight_grads(Schedule& schedule, int max_live);

}  // namespace gpipe::schedules
