// `gpipe train image|lm|translate`: train a model on real data, in stages.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::train {

void add_train_command(CLI::App& app, cli::Run& chosen);

}  // namespace gpipe::train
