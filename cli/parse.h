// The command line, read for a program with commands.
#pragma once

#include <CLI/CLI.hpp>

namespace gpipe::cli {

// Throws UsageError for an option that cannot be used or an argument that nothing takes, and what CLI11 throws: help
// and version, too. Who asks for help gets it, even next to an option that cannot be used.
void parse_command_line(CLI::App& app, int argc, char** argv);

// "see 'gpipe train lm --help'", of the command that was named.
std::string see_help(const CLI::App& app);

}  // namespace gpipe::cli
