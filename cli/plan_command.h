// gpipe plan: splits a profiled model into stages.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_plan_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
