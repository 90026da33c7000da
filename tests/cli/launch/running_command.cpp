#include "tests/cli/launch/running_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "tests/os/comes_true.h"

extern char** environ;

namespace gpipe::cli {
namespace {

using test::comes_true;

int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++times;
  return times;
}

}  // namespace

RunningCommand::RunningCommand(const Arguments& command) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, folder_.path("out").c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, folder_.path("err").c_str(), O_WRONLY | O_CREAT, 0600);
  Arguments words = command;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int error = posix_spawnp(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + command.front());
}

RunningCommand::~RunningCommand() {
  if (is_finished_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void RunningCommand::send(int signal) const { kill(pid_, signal); }

std::string RunningCommand::out() const { return read_file(folder_.path("out")); }

bool RunningCommand::prints(const std::string& text, int times) const {
  return comes_true([&] { return count(out(), text) >= times; });
}

Outcome RunningCommand::finish() {
  int status = 0;
  if (!comes_true([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) {
    ADD_FAILURE() << "still running after half a minute; so far: " << out();
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  is_finished_ = true;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out(), read_file(folder_.path("err"))};
}

std::vector<int> processes_with(const std::string& word) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(getpid())) continue;
    if (read_file(entry.path().string() + "/cmdline").find(word) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

bool all_end(const std::string& word) {
  if (comes_true([&] { return processes_with(word).empty(); })) return true;
  for (const int pid : processes_with(word)) kill(pid, SIGKILL);
  return false;
}

char state_of(int pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end_of_name = stat.rfind(')');
  return end_of_name == std::string::npos ? 'X' : stat[end_of_name + 2];
}

bool becomes(int pid, char state) {
  return comes_true([&] { return state_of(pid) == state; });
}

bool appears(const std::string& path) {
  return comes_true([&] { return std::filesystem::exists(path); }, 60);
}

}  // namespace gpipe::cli
