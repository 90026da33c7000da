// A timeline as text: one row a worker, time from left to right.
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

struct GanttOptions {
  int width = 100;     // columns, the whole line
  bool colour = false;  // ANSI colours; the plain form says the same without them
  int max_workers = 64; // rows; further workers are counted in a last line
};

std::string to_gantt(const Timeline& timeline, const GanttOptions& options = {});

}  // namespace gpipe
