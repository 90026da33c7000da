// The commands of gpipe. Each is added to the command line, and leaves in `chosen` what it does.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/command.h"

namespace gpipe::cli {

void add_schedule_command(CLI::App& app, Run& chosen);  // prints a schedule
void add_check_command(CLI::App& app, Run& chosen);     // proves a schedule or refuses it with a counter-example
void add_simulate_command(CLI::App& app, Run& chosen);  // runs a schedule on costs instead of tensors
void add_plan_command(CLI::App& app, Run& chosen);      // splits a profiled model into stages
void add_bleu_command(CLI::App& app, Run& chosen);      // scores a translation against its references
void add_doctor_command(CLI::App& app, Run& chosen);    // what this machine has and what it lacks

// Starts one process a rank. `program` is what the ranks run, with its arguments.
void add_launch_command(CLI::App& app, std::vector<std::string> program, Run& chosen);
// Runs a program in several ways, and compares what its pipelines did. `program` as above.
void add_verify_command(CLI::App& app, std::vector<std::string> program, Run& chosen);
// If the command is `launch` or `verify`, takes what follows the first "--" away from `argc`: options there are the
// program's own.
std::vector<std::string> split_off_program(int& argc, char** argv);

}  // namespace gpipe::cli
