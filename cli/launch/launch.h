// Starts the ranks of a job on this host and stays until the last one has ended.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"
#include "cli/launch/supervise.h"

namespace gpipe::cli {

struct LaunchOptions {
  Job job;
  std::vector<std::string> program;  // with its arguments
  SuperviseOptions supervise;
  int max_restarts = 0;
  int min_ranks = 1;  // that a job is started again with
  // The job with so many ranks, for another start: at a fresh port, with a fresh secret. REQUIRED for restarts.
  std::function<Job(int num_ranks)> renew;
  // Before a restart: why, which one it is, and with how many ranks.
  std::function<void(const LaunchResult& failed, int restart, int num_ranks)> on_restart;
};

// Note [Restarts]
// ~~~~~~~~~~~~~~~
// A job that has failed is started again when its last rank has ended, with as many ranks, up to `max_restarts` times,
// and the ranks find the number of the restart in GPIPE_RESTART. What they go on from is their own affair. A signal
// that asked the ranks to end is no failure.
//
// A rank cannot come back if the system starts no process for it, or if the job fails again before the ranks have met,
// as they had before (report_meeting). The next start is with one rank fewer then, but not fewer than `min_ranks`.

// The ranks' output goes to standard output and error. Rank 0 reads standard input unless that is a terminal; the other
// ranks find it empty. No process that a rank started is left behind, except by SIGKILL to this process and to one that
// has left its rank's process group.
//
// Throws EnvironmentError if the ranks could not make a world of what they will find, LaunchError if the program cannot
// be executed. REQUIRES: a process with one thread, whose children and signals it takes over until it returns.
LaunchResult launch(const LaunchOptions& options);

}  // namespace gpipe::cli
