// What `gpipe simulate` says about a timeline, for people and for programs.
#pragma once

#include <string>

#include "gpipe/report/gantt.h"
#include "gpipe/report/timeline.h"

namespace gpipe::cli {

std::string simulation_report(const Timeline& timeline, const GanttOptions& gantt);
std::string simulation_json(const Timeline& timeline);

}  // namespace gpipe::cli
