#include "run_command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "tests/os/comes_true.h"

extern char** environ;

namespace gpipe::cli {
namespace {

// `replaced`, then the entries of this process that it does not name. Of two entries the first one counts.
Arguments make_environment(const Arguments& replaced) {
  const auto variable = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  Arguments entries = replaced;
  entries.emplace_back("TERM=xterm-256color");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (variable(*entry) != "NO_COLOR" && variable(*entry) != "COLUMNS") entries.emplace_back(*entry);
  }
  return entries;
}

std::vector<char*> pointers(Arguments& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

struct Files {
  std::string in;
  std::string out;
  std::string err;
};

pid_t start(const Arguments& arguments, const Files& files, const Arguments& environment) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, files.in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, files.out.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, files.err.c_str(), O_WRONLY | O_CREAT, 0600);
  Arguments words = {GPIPE_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Arguments entries = make_environment(environment);
  pid_t child = -1;
  const int error =
      posix_spawn(&child, GPIPE_COMMAND, &actions, nullptr, pointers(words).data(), pointers(entries).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " GPIPE_COMMAND);
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string read_file(const std::string& path) { return test::content_of(path); }

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find_first_of("\r\n", begin), text.size());
    longest = std::max(longest, end - begin);
  }
  return longest;
}

Outcome run_gpipe(const Arguments& arguments, const std::string& input, const Arguments& environment) {
  const TemporaryFolder folder;
  const Files files{folder.write("in", input), folder.path("out"), folder.path("err")};
  Outcome outcome;
  outcome.exit_code = wait_for(start(arguments, files, environment));
  outcome.out = read_file(files.out);
  outcome.err = read_file(files.err);
  return outcome;
}

Outcome run_gpipe_with_signal(const Arguments& arguments, const std::string& text, int signal) {
  const TemporaryFolder folder;
  const Files files{folder.write("in", ""), folder.path("out"), folder.path("err")};
  const pid_t child = start(arguments, files, {});
  const auto has_ended = [&] {
    siginfo_t info{};
    return waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
  };
  test::comes_true([&] { return read_file(files.out).find(text) != std::string::npos || has_ended(); }, 60);
  kill(child, signal);
  Outcome outcome;
  outcome.exit_code = wait_for(child);
  outcome.out = read_file(files.out);
  outcome.err = read_file(files.err);
  return outcome;
}

Outcome run_gpipe_into(const std::string& output_path, const Arguments& arguments) {
  const TemporaryFolder folder;
  const Files files{folder.write("in", ""), output_path, folder.path("err")};
  Outcome outcome;
  outcome.exit_code = wait_for(start(arguments, files, {}));
  outcome.err = read_file(files.err);
  return outcome;
}

Outcome run_gpipe_on_terminal(const Arguments& arguments, int columns, const Arguments& environment,
                              bool shows_errors) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) throw std::runtime_error("no terminal");
  const std::string name = ptsname(terminal);
  // Held open until the command has opened it, so that reading waits instead of failing.
  const int screen = open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 50;
  ioctl(terminal, TIOCSWINSZ, &size);
  const TemporaryFolder folder;
  const Files files{folder.write("in", ""), name, shows_errors ? name : folder.path("err")};
  const pid_t child = start(arguments, files, environment);
  close(screen);
  Outcome outcome;
  char block[4096];
  for (ssize_t count; (count = read(terminal, block, sizeof block)) > 0;) outcome.out.append(block, count);
  outcome.exit_code = wait_for(child);
  close(terminal);
  if (!shows_errors) outcome.err = read_file(files.err);
  return outcome;
}

}  // namespace gpipe::cli
