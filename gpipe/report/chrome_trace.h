// A timeline as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev, with an arrow for every message.
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

// One thread a worker, one slice a span, and for each of `timeline.flows` an arrow from the slice that sent to the one
// that received: one a micro-batch; for a tied weight one in all, to the optimizer step. A message with an end that has
// no slice, such as an optimizer step that takes no time, gets no arrow. Times are in microseconds, to the picosecond.
// Linear in spans and messages.
std::string to_chrome_trace(const Timeline& timeline);

}  // namespace gpipe
