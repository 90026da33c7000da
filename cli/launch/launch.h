// Starts the ranks of a job on this host and looks after them until the last one has ended: their output, the
// launcher's signals, their end.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/rank_process.h"

namespace gpipe::cli {

// The processes of one run; those on this host are `num_local_ranks` from `first_rank` on.
struct Job {
  int num_ranks = 1;
  int first_rank = 0;
  int num_local_ranks = 1;
  std::optional<int> num_replicas;
  std::string host;
  std::string master_address;
  int master_port = 0;
  std::string network_interface;  // empty: none is named
  std::string secret;
  std::optional<double> timeout_seconds;
  int restart = 0;       // how often it was started before
  std::string met_file;  // for report_meeting; empty: nobody wants to know
};

// A secret for the ranks of a run to share: 256 random bits of the system's, as 64 hexadecimal digits. Throws
// LaunchError.
std::string make_secret();

// What a launcher tells each rank: `inherited` ("NAME=value") with the variables of `gpipe launch` and torchrun set for
// that rank.
std::vector<std::string> rank_environment(const Job& job, int local_rank, const std::vector<std::string>& inherited);

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

struct LaunchOptions {
  Job job;
  std::vector<std::string> program;  // with its arguments
  double grace_seconds = 10;
  bool prefix = true;
  bool colour_out = false;  // of the prefix
  bool colour_err = false;
  int max_restarts = 0;
  int min_ranks = 1;  // that a job is started again with
  // The job with so many ranks, for another start: at a fresh port, with a fresh secret. REQUIRED for restarts.
  std::function<Job(int num_ranks)> renew;
  // Before a restart: why, which one it is, and with how many ranks.
  std::function<void(const LaunchResult& failed, int restart, int num_ranks)> on_restart;
};

// Note [The end of a rank]
// The first rank that fails decides: the others get SIGTERM, and SIGKILL when the grace time is over. A rank is its
// process group: what the first process leaves behind in it is ended in the same way. SIGINT, SIGTERM, SIGHUP and
// SIGQUIT to the launcher are passed on to every rank and start the grace time; a second one kills at once. SIGUSR1,
// SIGUSR2, SIGTSTP and SIGCONT are passed on, and SIGTSTP stops the launcher itself, too.
//
// REQUIRES: a process with one thread, which adopts the orphans of its descendants (PR_SET_CHILD_SUBREAPER).
LaunchResult supervise(std::vector<RankProcess> ranks, const SignalQueue& signals, Guard& guard,
                       const LaunchOptions& options);

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
