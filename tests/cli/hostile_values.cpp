#include "hostile_values.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

namespace gpipe::cli {
namespace {

constexpr double kMostSeconds = 5;      // of processor time, until something is said or over
constexpr double kSecondsToLook = 0.3;  // of processor time, for what goes on
constexpr double kMostWaiting = 120;    // of time on the wall: something hangs
constexpr long kMostMemory = 1L << 30;  // bytes

// 16777216 is in the range of every number, but more than a schedule can have.
const Arguments kValues = {"-1",    "0",   "1", "16777216", "2147483647",  "2147483648", "9223372036854775807",
                           "1e308", "nan", "",  "\u0663",   "\uff11\uff12"};

// What the help calls a value that is no number. Any other is taken for one, so that a new option is tried, too.
const std::set<std::string> kWords = {"FILE",   "DIR",  "NAME", "MODEL", "TEXT",     "MODE",     "TYPE",
                                      "FORMAT", "WHEN", "WHAT", "HOW",   "LANG,...", "FILE,...", "A,B,.."};

struct NumericOption {
  std::string name;
  std::string type;
};

std::vector<NumericOption> numeric_options(const Arguments& command) {
  Arguments arguments = command;
  arguments.emplace_back("--help");
  const Outcome help = run_gpipe(arguments);
  EXPECT_EQ(help.exit_code, 0) << help.err;
  const std::regex option("^  (-[^ ,]+)(?:,-[^ ]+)? ([^ ]+)(?:  .*)?$");
  std::vector<NumericOption> found;
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, option) && kWords.count(match[2]) == 0) found.push_back({match[1], match[2]});
  }
  return found;
}

// The value, and for options of several numbers the value among others.
Arguments values_of(const std::string& type) {
  Arguments values = kValues;
  for (const char separator : {',', ':'}) {
    if (type.find(separator) == std::string::npos) continue;
    for (const std::string& value : kValues) {
      values.push_back(value + separator + value);
      values.push_back("1" + (separator + value));
    }
    values.emplace_back("2147483647,2147483647,8");
  }
  return values;
}

struct Ending {
  int status = 0;
  bool was_told_to_end = false;
  std::string gave_up_because;
  long memory_bytes = 0;
  std::string out;
  std::string err;
};

double seconds_of(pid_t child) {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(child, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

long resident_bytes(pid_t child) {
  long all = 0;
  long resident = 0;
  std::ifstream("/proc/" + std::to_string(child) + "/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

[[noreturn]] void become(const Program& program, const Arguments& arguments, const TemporaryFolder& folder) {
  setpgid(0, 0);
  const auto take = [](const std::string& path, int flags, int descriptor) {
    const int file = open(path.c_str(), flags, 0600);
    if (file < 0 || dup2(file, descriptor) < 0) _exit(99);
    close(file);
  };
  take(folder.path("in"), O_RDONLY, STDIN_FILENO);
  take(folder.path("out"), O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  take(folder.path("err"), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (chdir(folder.path("").c_str()) != 0) _exit(99);
  const int exit_code = program(arguments);
  fflush(nullptr);
  _exit(exit_code);
}

// Lets it run until it ends; what has said something and goes on is told to end, and so is long work. What does neither
// is killed.
Ending watch(const Program& program, const Arguments& arguments, const TemporaryFolder& folder, bool is_long_work) {
  using Clock = std::chrono::steady_clock;
  Ending ending;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start a process");
  if (child == 0) become(program, arguments, folder);
  const Clock::time_point begin = Clock::now();
  double told_at = 0;
  rusage usage{};
  while (wait4(child, &ending.status, WNOHANG, &usage) == 0) {
    usleep(2000);
    const double used = seconds_of(child);
    std::error_code error;
    const bool has_spoken = std::filesystem::file_size(folder.path("out"), error) > 0 && !error;
    const bool is_at_work = has_spoken ? used > kSecondsToLook : is_long_work && used > kMostSeconds;
    if (!ending.was_told_to_end && is_at_work) {
      ending.was_told_to_end = true;
      told_at = used;
      kill(child, SIGTERM);
    }
    ending.memory_bytes = std::max(ending.memory_bytes, resident_bytes(child));
    if (used - told_at > kMostSeconds) ending.gave_up_because = "it takes more than 5 seconds of processor time";
    if (std::chrono::duration<double>(Clock::now() - begin).count() > kMostWaiting) ending.gave_up_because = "it hangs";
    if (ending.memory_bytes > kMostMemory) ending.gave_up_because = "it takes more than 1 GiB";
    if (ending.gave_up_because.empty()) continue;
    kill(-child, SIGKILL);
    wait4(child, &ending.status, 0, &usage);
    break;
  }
  ending.memory_bytes = std::max(ending.memory_bytes, usage.ru_maxrss * 1024);
  ending.out = read_file(folder.path("out"));
  ending.err = read_file(folder.path("err"));
  return ending;
}

// Empty if a user can read it.
std::string fault_of(const std::string& message) {
  if (message.compare(0, 7, "gpipe: ") != 0) return "it does not begin with 'gpipe: '";
  if (std::count(message.begin(), message.end(), '\n') > 2) return "it is longer than a line and a hint";
  for (const char* word : {"internal", "defect", "please report", "terminate", "std::", "c10", "at::", "Exception",
                           "frame #", "[enforce", "bad_alloc", "vector", "RuntimeError"}) {
    if (message.find(word) != std::string::npos) return std::string("it says '") + word + "'";
  }
  return "";
}

std::string fault_of(const Ending& ending) {
  if (!ending.gave_up_because.empty()) return ending.gave_up_because;
  if (ending.memory_bytes > kMostMemory) return "it took more than 1 GiB";
  const bool has_exited = WIFEXITED(ending.status);
  const int exit_code = has_exited ? WEXITSTATUS(ending.status) : 0;
  if (ending.was_told_to_end && (!has_exited || exit_code == 128 + SIGTERM)) {
    return has_exited || WTERMSIG(ending.status) == SIGTERM ? "" : "a signal ended it";
  }
  if (!has_exited) return "signal " + std::to_string(WTERMSIG(ending.status)) + " ended it";
  if (exit_code == 0) return "";
  if (exit_code != 1 && exit_code != 2) return "its exit code is " + std::to_string(exit_code);
  return fault_of(ending.err);
}

std::string joined(const Arguments& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + (word.empty() ? "''" : word);
  return line;
}

// All of its options, and `other` instead of the one of that name.
Arguments with_option(const HostileCase& base, const Arguments& other) {
  Arguments arguments = base.command;
  for (const Arguments& option : base.options) {
    if (other.empty() || option.front() != other.front()) {
      arguments.insert(arguments.end(), option.begin(), option.end());
    }
  }
  arguments.insert(arguments.end(), other.begin(), other.end());
  if (!base.program.empty()) arguments.emplace_back("--");
  arguments.insert(arguments.end(), base.program.begin(), base.program.end());
  return arguments;
}

}  // namespace

void expect_clear_refusals(const Program& program, const HostileCase& base) {
  {
    const TemporaryFolder folder;
    folder.write("in", base.input);
    const Ending ending = watch(program, with_option(base, {}), folder, !base.long_work.empty());
    ASSERT_TRUE(ending.was_told_to_end || ending.status == 0)
        << joined(with_option(base, {})) << " does not even work as it is: " << ending.err;
  }
  const std::vector<NumericOption> options = numeric_options(base.command);
  for (const NumericOption& option : options) {
    for (const std::string& value : values_of(option.type)) {
      const TemporaryFolder folder;
      folder.write("in", base.input);
      const Arguments arguments = with_option(base, {option.name, value});
      const Ending ending = watch(program, arguments, folder, base.long_work.count(option.name) != 0);
      const std::string fault = fault_of(ending);
      if (fault.empty()) continue;
      ADD_FAILURE() << joined(arguments) << "\n  " << fault << "; memory " << (ending.memory_bytes >> 20) << " MiB\n"
                    << ending.out.substr(0, 300) << ending.err.substr(0, 2000);
    }
  }
}

std::vector<Arguments> commands_of(const Arguments& command) {
  Arguments arguments = command;
  arguments.emplace_back("--help");
  const Outcome help = run_gpipe(arguments);
  std::vector<Arguments> commands;
  std::istringstream lines(help.out);
  bool is_list = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] != ' ') is_list = line == "Commands:";
    if (!is_list || line.compare(0, 2, "  ") != 0 || line[2] == ' ') continue;
    Arguments below = command;
    below.push_back(line.substr(2, line.find(' ', 2) - 2));
    commands.push_back(below);
    const std::vector<Arguments> further = commands_of(below);
    commands.insert(commands.end(), further.begin(), further.end());
  }
  return commands;
}

}  // namespace gpipe::cli
