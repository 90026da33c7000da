// Commands that other programs run. Those that need libtorch are in gpipe-train, so that the others start at once;
// get-data is a script.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// So that the help lists them.
void add_handed_over_commands(CLI::App& app);

// If the first argument is one of them, becomes its program with the same arguments and does not return; returns
// otherwise. Throws UsageError if the program is not where it belongs: gpipe-train next to this one, get-data in
// libexec/gpipe.
void hand_over_command(int argc, char** argv);

}  // namespace gpipe::cli
