// `gpipe translate` and `gpipe generate`: a trained model at work.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_translate_command(CLI::App& app, cli::Run& chosen);
void add_generate_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
