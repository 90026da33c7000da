// gpipe inspect and gpipe convert: what is in a file of weights or a checkpoint, and the same in another form.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_inspect_command(CLI::App& app, cli::Run& chosen);
void add_convert_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
