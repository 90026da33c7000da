#include "cli/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "gpipe/error.h"
#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {
namespace {

using detail::FileDescriptor;
using detail::make_pipe;
using detail::Pipe;

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

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
  while (TEMP_FAILURE_RETRY(read(channel, &message, sizeof message)) == sizeof message) {
    if (message == kGoHome) _exit(EXIT_SUCCESS);
    if (message > 0) groups.insert(message);
    if (message < 0) groups.erase(-message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(EXIT_FAILURE);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

// What the new process needs, made before the fork: afterwards nothing may be allocated.
struct Child {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t launcher;
  int in;
  int out;
  int err;
  int errors;  // takes errno if the program cannot be executed
};

[[noreturn]] void become(const Child& child, const SignalQueue& signals, const Guard& guard) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.launcher) _exit(LaunchError::kNotStarted);  // it died before that
  const pid_t group = getpid();
  [[maybe_unused]] const ssize_t told = write(guard.channel(), &group, sizeof group);
  dup2(child.in, STDIN_FILENO);
  dup2(child.out, STDOUT_FILENO);
  dup2(child.err, STDERR_FILENO);
  signals.restore();
  std::signal(SIGXFSZ, SIG_DFL);  // the gpipe command ignores it; the program decides for itself
  execvpe(child.arguments[0], child.arguments.data(), child.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t said = write(child.errors, &error, sizeof error);
  _exit(LaunchError::kNotStarted);
}

[[noreturn]] void refuse(const std::string& program, int error) {
  if (error == ENOENT || error == ENOTDIR) {
    const bool has_slash = program.find('/') != std::string::npos;
    throw LaunchError(fmt::format("there is no program '{}'{}", program,
                                  has_slash ? " (or not the interpreter that its first line names)"
                                            : " in PATH; a program in this folder is called ./" + program),
                      LaunchError::kNotFound);
  }
  throw LaunchError(fmt::format("'{}' cannot be executed: {}{}", program, std::strerror(error),
                                error == EACCES ? "; it has to be a program, with permission to execute it" : ""),
                    LaunchError::kNotExecutable);
}

}  // namespace

SignalQueue::SignalQueue() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &pipe_before_);
  action.sa_handler = SIG_DFL;  // ignored, it would leave no exit codes
  sigaction(SIGCHLD, &action, &child_before_);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int signal : kPassedOn) {
    if (!is_ignored(signal)) sigaddset(&signals, signal);
  }
  sigprocmask(SIG_BLOCK, &signals, &mask_before_);
  fd_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() { restore(); }

int SignalQueue::next() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void SignalQueue::restore() const {
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

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
  tell(kGoHome);
  channel_.reset();
  TEMP_FAILURE_RETRY(waitpid(pid_, nullptr, 0));
}

void Guard::forget(pid_t group) { tell(-group); }

void Guard::tell(pid_t message) const {
  [[maybe_unused]] const ssize_t ignored = write(channel_.get(), &message, sizeof message);
}

RankProcess spawn(const RankProgram& program, const SignalQueue& signals, const Guard& guard) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe errors = make_pipe();
  const Child child{
      pointers(program.arguments), pointers(program.environment), getpid(), program.stdin_fd, out.write_end.get(),
      err.write_end.get(),         errors.write_end.get()};
  const pid_t pid = fork();
  if (pid < 0) {
    throw LaunchError(fmt::format("cannot start rank {}: {}; 'ulimit -u' says how many processes there may be",
                                  program.rank, std::strerror(errno)),
                      LaunchError::kNotStarted);
  }
  if (pid == 0) become(child, signals, guard);
  setpgid(pid, pid);  // whoever comes first; fails once the program is executed, which is after the child's own call
  errors.write_end.reset();
  // Waits until the program is executed, which closes the other end, or has failed.
  int error = 0;
  if (TEMP_FAILURE_RETRY(read(errors.read_end.get(), &error, sizeof error)) == sizeof error) {
    waitpid(pid, nullptr, 0);
    refuse(program.arguments[0], error);
  }
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  return {program.rank, pid, std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace gpipe::cli
