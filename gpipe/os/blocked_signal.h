// BlockedSignal: what would end the process with a signal is an error of the call that caused it.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace gpipe::detail {

// For signals that the kernel sends to the thread whose own call caused them: SIGPIPE of a write to a peer that is gone
// (EPIPE), SIGXFSZ of a write beyond the limit of file sizes (EFBIG). While it lives, this thread does not get the
// signal, and threads that are started from it never do. What the program does about the signal stays as it is.
class BlockedSignal {
 public:
  explicit BlockedSignal(int signal) {
    sigemptyset(&signal_);
    sigaddset(&signal_, signal);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, signal) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  // Leaves errno as the call has set it.
  ~BlockedSignal() {
    const int error = errno;
    const timespec no_time{0, 0};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  BlockedSignal(const BlockedSignal&) = delete;
  BlockedSignal& operator=(const BlockedSignal&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace gpipe::detail
