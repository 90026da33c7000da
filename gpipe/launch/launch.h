// Starts the ranks of a job on this host and stays until the last one has ended.
#pragma once

#include <string>
#include <vector>

#include "gpipe/launch/rank_environment.h"
#include "gpipe/launch/supervise.h"

namespace gpipe {

struct LaunchOptions {
  Job job;
  std::vector<std::string> program;  // with its arguments
  SuperviseOptions supervise;
};

// The ranks' output goes to standard output and error. Rank 0 reads standard input unless that is a terminal; the other
// ranks find it empty. No process that a rank started is left behind, except by SIGKILL to this process and to one that
// has left its rank's process group.
//
// Throws EnvironmentError if the ranks could not make a world of what they will find, LaunchError if the program cannot be
// executed. REQUIRES: a process with one thread, whose children and signals it takes over until it returns.
LaunchResult launch(const LaunchOptions& options);

}  // namespace gpipe
