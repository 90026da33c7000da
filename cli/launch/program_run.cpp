#include "cli/launch/program_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/launch/rank_process.h"
#include "gpipe/os/file_descriptor.h"

extern char** environ;

namespace gpipe::cli {
namespace {

using detail::FileDescriptor;
using Clock = std::chrono::steady_clock;

constexpr int kPollMilliseconds = 50;
constexpr std::chrono::seconds kGrace(10);

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::vector<std::string> whole_environment(const std::vector<std::string>& changed) {
  std::vector<std::string> entries;
  for (const std::string& entry : changed) {
    if (entry.back() != '=') entries.push_back(entry);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool is_changed = std::any_of(changed.begin(), changed.end(),
                                        [&](const std::string& other) { return name_of(other) == name_of(*entry); });
    if (!is_changed) entries.emplace_back(*entry);
  }
  return entries;
}

// The end of a text that comes piece by piece.
class Tail {
 public:
  void add(std::string_view text) {
    text_.append(text);
    if (text_.size() > 2 * kMostBytes) text_.erase(0, text_.size() - kMostBytes);
  }
  std::string lines() const {
    constexpr int kMostLines = 12;
    std::size_t begin = text_.size();
    for (int line = 0; line <= kMostLines && begin != std::string::npos && begin > 0; ++line) {
      begin = text_.rfind('\n', begin - 1);
    }
    return begin == std::string::npos ? text_ : text_.substr(begin == 0 || text_[begin] != '\n' ? begin : begin + 1);
  }

 private:
  static constexpr std::size_t kMostBytes = 8192;
  std::string text_;
};

bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

// The program while it runs.
class Running {
 public:
  explicit Running(const ProgramCommand& command) : command_(command) {
    const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    process_ = spawn({0, command.arguments, whole_environment(command.environment), nothing.get()}, signals_, guard_);
  }

  ProgramEnd wait() {
    while (!reap()) {
      std::array<pollfd, 3> waited = {pollfd{signals_.fd(), POLLIN, 0}, pollfd{process_.out.get(), POLLIN, 0},
                                      pollfd{process_.err.get(), POLLIN, 0}};
      poll(waited.data(), waited.size(), kPollMilliseconds);
      take_output();
      while (const int signal = signals_.next()) take_signal(signal);
      if (!killed_at_ && command_.is_enough && command_.is_enough()) {
        end_.was_stopped = true;
        stop(SIGTERM);
      }
      if (killed_at_ && Clock::now() > *killed_at_) kill(-process_.pid, SIGKILL);
    }
    take_output();
    kill(-process_.pid, SIGKILL);
    guard_.forget(process_.pid);
    end_.last_lines = tail_.lines();
    return std::move(end_);
  }

 private:
  bool reap() {
    int status = 0;
    if (waitpid(process_.pid, &status, WNOHANG) != process_.pid) return false;
    end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }

  void take_signal(int signal) {
    if (signal == SIGCHLD) return;
    if (!asks_to_end(signal)) {
      kill(-process_.pid, signal);
      return;
    }
    end_.interrupted_by = signal;
    stop(signal);
  }

  void stop(int signal) {
    kill(-process_.pid, signal);
    if (!killed_at_) killed_at_ = Clock::now() + kGrace;
  }

  void take_output() {
    for (FileDescriptor* source : {&process_.out, &process_.err}) {
      std::array<char, 4096> bytes{};
      while (source->is_open()) {
        const ssize_t size = read(source->get(), bytes.data(), bytes.size());
        if (size > 0) tail_.add({bytes.data(), static_cast<std::size_t>(size)});
        if (size == 0) source->reset();
        if (size < 0) break;
      }
    }
  }

  const ProgramCommand& command_;
  const SignalQueue signals_;
  Guard guard_;
  RankProcess process_;
  Tail tail_;
  ProgramEnd end_;
  std::optional<Clock::time_point> killed_at_;  // when it has to be over, once it was asked to end
};

}  // namespace

ProgramEnd run_program(const ProgramCommand& command) { return Running(command).wait(); }

}  // namespace gpipe::cli
