// `gpipe eval`: a trained model measured on its test data.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_eval_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
