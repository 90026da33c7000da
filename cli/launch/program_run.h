// Runs one program to its end, or until enough of it was seen.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gpipe::cli {

struct ProgramCommand {
  std::vector<std::string> arguments;    // the first one is found in PATH unless it has a slash
  std::vector<std::string> environment;  // "NAME=value" in place of what this process has; "NAME=" takes it away
  std::function<bool()> is_enough;       // asked now and then: once it is, the program gets SIGTERM. May be empty
};

struct ProgramEnd {
  int exit_code = 0;         // 128 + the signal that ended it
  bool was_stopped = false;  // because there was enough
  int interrupted_by = 0;    // the signal to this process that asked it to end
  std::string last_lines;    // of what it printed
};

// Standard input is empty. A signal that asks this process to end goes to the program, which has ten seconds then. No
// process that it leaves in its process group outlives it. Throws LaunchError if it cannot be executed. REQUIRES: a
// process with one thread.
ProgramEnd run_program(const ProgramCommand& command);

}  // namespace gpipe::cli
