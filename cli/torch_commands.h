// The commands that need libtorch. They are in a program of their own, gpipe-train, so that the others start at once.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// So that the help lists them.
void add_torch_commands(CLI::App& app);

// If the first argument is one of them, becomes gpipe-train with the same arguments and does not return; returns otherwise.
// Throws UsageError if there is no gpipe-train next to this program.
void hand_over_torch_command(int argc, char** argv);

}  // namespace gpipe::cli
