// gpipe schedule: prints a schedule.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_schedule_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
