#include "cli/launch/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>

#include "gpipe/error.h"
#include "gpipe/os/pipe.h"

namespace gpipe::cli {
namespace {

constexpr pid_t kGoHome = 0;

// Out of reach of what ends the launcher: the terminal's signals, and a signal to its process group.
void step_aside() {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "gpipe-guard");
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, fd);
}

// Messages are groups to kill, minus those to forget. Less than PIPE_BUF, so each arrives in one piece.
[[noreturn]] void keep_guard(int channel) {
  std::set<pid_t> groups;
  pid_t message = 0;
  for (ssize_t count; (count = read(channel, &message, sizeof message)) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof message) break;
    if (message == kGoHome) _exit(EXIT_SUCCESS);
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(EXIT_FAILURE);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  pid_ = fork();
  if (pid_ < 0) {
    throw LaunchError(fmt::format("cannot start a process: {}", std::strerror(errno)), LaunchError::kNotStarted);
  }
  if (pid_ == 0) {
    pipe.write_end.reset();
    step_aside();
    keep_guard(pipe.read_end.get());
  }
  channel_ = std::move(pipe.write_end);
}

Guard::~Guard() {
  const pid_t message = kGoHome;
  [[maybe_unused]] const ssize_t ignored = write(channel_.get(), &message, sizeof message);
  channel_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::forget(pid_t group) {
  const pid_t message = -group;
  [[maybe_unused]] const ssize_t ignored = write(channel_.get(), &message, sizeof message);
}

}  // namespace gpipe::cli
