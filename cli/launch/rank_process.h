// The processes of the ranks, and what the launcher has around them: its signals, and a guard for the case that it is
// killed itself. All require a process with one thread.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

// Signals as messages to read, instead of interruptions. While it lives, SIGCHLD and the signals that a launcher passes
// on arrive in fd(), and SIGPIPE is ignored. A signal that was ignored before, as SIGHUP under nohup, still is.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal, 0 if there is none.
  int next() const;
  // In a process that was forked off: signals as they were before. Safe between fork and exec.
  void restore() const;

 private:
  sigset_t mask_before_{};
  struct sigaction pipe_before_ {};
  struct sigaction child_before_ {};
  detail::FileDescriptor fd_;
};

// A process of its own that kills the ranks if the launcher cannot do so any more. The kernel kills the ranks
// themselves when the launcher dies, but not what they started. The guard notices that the other end of its channel is
// closed, and kills the process groups it was told of.
class Guard {
 public:
  // Starts it. Throws LaunchError.
  Guard();
  // Sends it home.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Where a rank writes its process group, as a pid_t, before it executes its program.
  int channel() const { return channel_.get(); }
  // The group has no members any more: its number may belong to somebody else soon.
  void forget(pid_t group);

 private:
  void tell(pid_t message) const;

  pid_t pid_ = -1;
  detail::FileDescriptor channel_;
};

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;              // also the number of its process group
  detail::FileDescriptor out;  // its standard output, to be read
  detail::FileDescriptor err;
};

struct RankProgram {
  int rank = 0;
  std::vector<std::string> arguments;    // the first one is found in PATH unless it has a slash
  std::vector<std::string> environment;  // all of it: "NAME=value"
  int stdin_fd = 0;
};

// Returns once the program is being executed. It leads a process group of its own and is killed when this process dies.
// Throws LaunchError if it cannot be executed.
RankProcess spawn(const RankProgram& program, const SignalQueue& signals, const Guard& guard);

}  // namespace gpipe::cli
