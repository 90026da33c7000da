// `gpipe profile`: what each layer of a model costs, for `gpipe plan`.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_profile_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
