// gpipe bleu: scores a translation against its references.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_bleu_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
