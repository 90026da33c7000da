// A timeline as Chrome trace JSON, for chrome://tracing and ui.perfetto.dev, with an arrow for every message.
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

std::string to_chrome_trace(const Timeline& timeline);

}  // namespace gpipe
