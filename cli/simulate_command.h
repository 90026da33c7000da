// gpipe simulate: runs a schedule on costs instead of tensors.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_simulate_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
