// What `gpipe plan` says about a plan, for people and for programs.
#pragma once

#include <string>

#include "gpipe/plan/plan.h"
#include "gpipe/simulate/forecast.h"
#include "gpipe/simulate/planner.h"

namespace gpipe::cli {

// `step` is the simulated step of the plan; `width` the columns of a line.
std::string plan_report(const Profile& profile, const Plan& plan, const Forecast& step, int width);
std::string plan_json(const Profile& profile, const PlanSearch& search, const Forecast& step);

}  // namespace gpipe::cli
