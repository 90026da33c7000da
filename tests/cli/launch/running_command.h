// A command that runs while the test looks on.
#pragma once

#include <string>
#include <vector>

#include "run_command.h"

namespace gpipe::cli {

// Runs in the background, with nothing on standard input.
class RunningCommand {
 public:
  explicit RunningCommand(const Arguments& command);
  // Kills it if it still runs.
  ~RunningCommand();
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  int pid() const { return pid_; }
  void send(int signal) const;
  std::string out() const;
  // Whether standard output has `text` so many times, now or before half a minute has passed.
  bool prints(const std::string& text, int times = 1) const;
  // Waits for the end. After half a minute, kills it and reports a failure.
  Outcome finish();

 private:
  TemporaryFolder folder_;
  int pid_ = -1;
  bool is_finished_ = false;
};

// Processes, zombies apart, one of whose arguments has `word`, apart from this one.
std::vector<int> processes_with(const std::string& word);

// Whether there are none, now or before half a minute has passed. Kills what is left.
bool all_end(const std::string& word);

// The letter of /proc: 'R' running, 'S' sleeping, 'T' stopped, 'Z' zombie; 'X' for none.
char state_of(int pid);

// Whether it gets into that state before half a minute has passed.
bool becomes(int pid, char state);

// Whether there is a file or folder of this name, now or before a minute has passed.
bool appears(const std::string& path);

}  // namespace gpipe::cli
