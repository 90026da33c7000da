// SigpipeScope: a write to a peer that is gone is an error here, not the end of the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace gpipe {

// Gloo writes to sockets in the thread that asks for it, and in threads of its own, without keeping SIGPIPE away. While it
// lives, this thread gets none, and threads started from it never do. What the program does about the signal stays as it is.
class SigpipeScope {
 public:
  SigpipeScope() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeScope() {
    const timespec no_time{0, 0};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &no_time);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeScope(const SigpipeScope&) = delete;
  SigpipeScope& operator=(const SigpipeScope&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace gpipe
