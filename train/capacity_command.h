// `gpipe capacity`: Table 1 of the GPipe paper, measured in miniature or planned with the paper's own figures.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_capacity_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
