// gpipe check: proves a schedule or refuses it with a counter-example.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_check_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
