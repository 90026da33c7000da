// gpipe doctor: what this machine has and what it lacks.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace gpipe::cli {

void add_doctor_command(CLI::App& app, Run& chosen);

}  // namespace gpipe::cli
