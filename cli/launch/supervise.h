// Looks after running ranks until none is left: their output, the launcher's signals, their end.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/guard.h"
#include "cli/launch/signal_queue.h"
#include "cli/launch/spawn.h"

namespace gpipe::cli {

struct RankFailure {
  int rank = 0;
  pid_t pid = -1;
  int exit_code = 0;                    // 128 + the signal if one ended it
  int signal = 0;                       // 0 if it ended by itself
  std::vector<std::string> last_lines;  // of its standard error
};

struct LaunchResult {
  int exit_code = 0;                   // that of the first rank that failed
  std::optional<RankFailure> failure;  // that rank
  int interrupted_by = 0;              // the first signal to the launcher that asked the ranks to end
};

struct SuperviseOptions {
  double grace_seconds = 10;
  bool prefix = true;
  bool colour_out = false;  // of the prefix
  bool colour_err = false;
};

// Note [The end of a rank]
// The first rank that fails decides: the others get SIGTERM, and SIGKILL when the grace time is over. A rank is its
// process group: what the first process leaves behind in it is ended in the same way. SIGINT, SIGTERM, SIGHUP and
// SIGQUIT to the launcher are passed on to every rank and start the grace time; a second one kills at once. SIGUSR1,
// SIGUSR2, SIGTSTP and SIGCONT are passed on, and SIGTSTP stops the launcher itself, too.
//
// REQUIRES: a process with one thread, which adopts the orphans of its descendants (PR_SET_CHILD_SUBREAPER).
LaunchResult supervise(std::vector<RankProcess> ranks, const SignalQueue& signals, Guard& guard,
                       const SuperviseOptions& options);

}  // namespace gpipe::cli
