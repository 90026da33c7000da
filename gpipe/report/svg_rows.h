// The rows of the SVG picture: bars with their numbers and tooltips, and stacks of what is too narrow for a bar.
#pragma once

#include <string>
#include <vector>

#include "gpipe/report/chart.h"

namespace gpipe::chart {

// Where things are, in pixels.
struct SvgGeometry {
  static constexpr double kLeft = 104;  // of the chart
  static constexpr double kWidth = 1020;
  static constexpr double kTop = 92;  // of the first row
  double pitch = 0;                   // from row to row
  double bar_height = 0;
  double bottom = 0;         // of the last row
  double merge_below = 0;    // narrower spans are merged ...
  double stack_width = 0;    // ... into stacks about this wide
  int num_shades = 1;        // a stage of a worker has one of so many
  bool has_numbers = false;  // of the micro-batches: on every span or on none, as the narrowest has room for its own
  bool has_stacks = false;   // some spans are merged
  static double x(double position) { return kLeft + position * kWidth; }
  double row_top(int row) const { return kTop + row * pitch; }
};

struct SvgPlace {
  const SvgGeometry& geometry;
  double top;  // of the row
};

// `rows` are those of `timeline`.
SvgGeometry make_svg_geometry(const Timeline& timeline, const std::vector<Row>& rows);

// Two decimals are enough for a pixel.
double px(double value);

// Of a bar, and of the number on it. Colours are attributes, not CSS: more programs can read them, and pictures on one
// page do not restyle each other.
struct SvgShade {
  std::string fill;
  std::string ink;
};

// From the full colour of the kind, shade 0, to a light one.
SvgShade make_svg_shade(int kind, int shade, int num_shades);

// How a span on the critical path is outlined.
inline constexpr const char* kCriticalStroke = " stroke=\"#1f2328\" stroke-width=\"1.4\" stroke-opacity=\"0.85\"";

// `is_critical` says of each span whether it lies on the critical path; empty if none does. At most a few thousand
// elements.
void append_svg_row(std::string& out, const WorkerTimeline& worker, const Row& row,
                    const std::vector<bool>& is_critical, const SvgPlace& place);

}  // namespace gpipe::chart
