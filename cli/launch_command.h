// gpipe launch: starts one process a rank.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/command.h"

namespace gpipe::cli {

// `program` is what the ranks run, with its arguments.
void add_launch_command(CLI::App& app, std::vector<std::string> program, Run& chosen);

// If the command is `launch`, takes what follows the first "--" away from `argc`: options there are the program's own.
std::vector<std::string> split_off_program(int& argc, char** argv);

}  // namespace gpipe::cli
