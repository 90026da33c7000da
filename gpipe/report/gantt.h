// A timeline as text: one row a worker, time from left to right.
//
//     1f1b  3 stages  4 micro-batches
//        0         5 s       10 s      15 s    busy
//     0 |F0F1F2........B0==F3B1==..B2==..B3==|  67%
//     1 |..F0F1....B0==F2B1==F3B2==..B3==....|  67%
//     2 |....F0B0==F1B1==F2B2==F3B3==........|  67%
//     F forward  B= backward  . idle  F1: micro-batch 1
//     makespan 18 s  bubble 33.3%
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

struct GanttOptions {
  int width = 100;       // columns, the whole line; no line is longer
  bool colour = false;   // ANSI colours; the plain form has the same text, without the caption of the shades
  int max_workers = 64;  // rows; further workers are counted in a last line
};

// A span shows its label, or as much of it as fits: stage (if the worker has several), letter and micro-batch, then a
// fill for its kind. Where a row has more spans than columns, each column is a lower-case letter, and the letters
// and dots of the row stand in the proportion of the times. Times that lie on a grid get a whole number of columns a
// grid step, so that equal spans look equal. The legend explains every sign that occurs, and no other. UTF-8. Linear in
// the number of spans.
std::string to_gantt(const Timeline& timeline, const GanttOptions& options = {});

}  // namespace gpipe
