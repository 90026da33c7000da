// SignalQueue: signals as messages to read, instead of interruptions.
#pragma once

#include <csignal>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

// While it lives, SIGCHLD and the signals that a launcher passes on arrive in fd(), and SIGPIPE is ignored. A signal
// that was ignored before, as SIGHUP under nohup, still is. REQUIRES: a process with one thread.
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
  FileDescriptor fd_;
};

}  // namespace gpipe::cli
