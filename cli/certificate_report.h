// What `gpipe check` says about a schedule, for people and for programs.
#pragma once

#include <string>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/validate.h"

namespace gpipe::cli {

std::string certificate_report(const Schedule& schedule, const Certificate& certificate);
std::string certificate_json(const Schedule& schedule, const Certificate& certificate);

// The schedule is refused: the rule, the offending actions and the cycle.
std::string refusal_json(const Schedule& schedule, const ScheduleError& error);

}  // namespace gpipe::cli
