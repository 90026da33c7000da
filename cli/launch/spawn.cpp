#include "cli/launch/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "gpipe/error.h"
#include "gpipe/os/pipe.h"

namespace gpipe::cli {
namespace {

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

// Waits until the program is executed, which closes the other end, or has failed.
int execution_error(int errors) {
  int error = 0;
  ssize_t count = 0;
  while ((count = read(errors, &error, sizeof error)) < 0 && errno == EINTR) {
  }
  return count == sizeof error ? error : 0;
}

}  // namespace

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
  if (const int error = execution_error(errors.read_end.get()); error != 0) {
    waitpid(pid, nullptr, 0);
    refuse(program.arguments[0], error);
  }
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  return {program.rank, pid, std::move(out.read_end), std::move(err.read_end)};
}

}  // namespace gpipe::cli
