// Starts the process of one rank.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/launch/guard.h"
#include "cli/launch/signal_queue.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;      // also the number of its process group
  FileDescriptor out;  // its standard output, to be read
  FileDescriptor err;
};

struct RankProgram {
  int rank = 0;
  std::vector<std::string> arguments;    // the first one is found in PATH unless it has a slash
  std::vector<std::string> environment;  // all of it: "NAME=value"
  int stdin_fd = 0;
};

// Returns once the program is being executed. It leads a process group of its own and is killed when this process dies.
// Throws LaunchError if it cannot be executed. REQUIRES: a process with one thread.
RankProcess spawn(const RankProgram& program, const SignalQueue& signals, const Guard& guard);

}  // namespace gpipe::cli
