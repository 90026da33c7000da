// A timeline as an SVG picture: one row a worker, time from left to right, the critical path outlined.
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

// A document of its own: 1200 wide, with its own background, without scripts, fonts or links. Every span has a tooltip,
// and carries the number of its micro-batch unless one of them has no room for it: then none does. Spans too narrow to
// see are merged into stacks that keep the proportions of their kinds, so that the size is bounded whatever the number
// of spans. Linear in that number.
std::string to_svg(const Timeline& timeline);

}  // namespace gpipe
