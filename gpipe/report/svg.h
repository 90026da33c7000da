// A timeline as an SVG picture.
#pragma once

#include <string>

#include "gpipe/report/timeline.h"

namespace gpipe {

std::string to_svg(const Timeline& timeline);

}  // namespace gpipe
