// Recompute insertion: a pass over a schedule that adds R actions.
#pragma once

#include <string_view>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

enum class Recompute {
  kAlways,      // every micro-batch
  kExceptLast,  // every micro-batch but the last one
  kNever,
  kAuto,  // as a plan chooses
};

// "always", "except-last", "never", "auto". The parser throws InvalidArgument for any other word, naming the nearest
// valid one.
const char* name(Recompute mode);
Recompute parse_recompute(std::string_view word);

// Puts R directly in front of each B or I that `mode` covers, unless the micro-batch's F stands directly before it on
// the worker: then its activations are still there. R takes nothing from another worker, so it runs while B waits for
// its gradient. Replaces the recompute actions the schedule had.
//
//   F0 F1 B0 B1  ->  F0 F1 R0 B0 R1 B1        F0 B0 F1 B1  ->  unchanged
//
// Throws InvalidArgument for kAuto.
Schedule with_recompute(Schedule schedule, Recompute mode);

// The same with a mode for each stage. Throws InvalidArgument if there are more or fewer of them.
Schedule with_recompute(Schedule schedule, const std::vector<Recompute>& by_stage);

}  // namespace gpipe
