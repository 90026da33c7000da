// Weight-gradient fill: the list scheduling that turns an order of F and I into a zero-bubble schedule.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe::schedules {

// `schedule` holds F and I only. Runs it at one time unit an action and puts a pending W, oldest first, wherever a
// worker would otherwise idle, or where its next F would make it hold more than `max_live` micro-batches (of one stage
// each, counted from F to W). The order of F and I stays as it is.
//
// Returns false, leaving `schedule` as it was, if max_live is too small for the order.
bool fill_weight_grads(Schedule& schedule, int max_live);

}  // namespace gpipe::schedules
