// Ranks of a world as processes of their own: this very program again, with the variables of a launcher.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/launch/programs.h"
#include "tests/os/comes_true.h"
#include "tests/os/reserved_port.h"
#include "tests/os/temporary_folder.h"

extern char** environ;

namespace gpipe::test {

// In the process: until RankProcesses::start, or the end of the test that should call it.
inline void wait_for_start() {
  std::printf("ready\n");
  std::fflush(stdout);
  if (!comes_true([] { return access(std::getenv("GPIPE_TEST_START"), F_OK) == 0; }, 120)) {
    throw std::runtime_error("nobody has started this rank");
  }
}

struct RankPlaces {
  std::string master_address = "127.0.0.1";
  std::vector<std::string> namespaces = {};  // of the network, one a rank; empty: all are in this one
  int num_replicas = 1;
};

// Each runs the program of that name (see Program), as any program would run under a launcher.
class RankProcesses {
 public:
  RankProcesses(int size, const std::string& program, double timeout_seconds, RankPlaces places = {})
      : places_(std::move(places)) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back({-1, folder_.path("rank" + std::to_string(rank))});
      spawn(rank, size, program, timeout_seconds);
    }
  }
  ~RankProcesses() {
    for (Rank& rank : ranks_) {
      if (rank.process > 0) {
        kill(rank.process, SIGKILL);
        waitpid(rank.process, nullptr, 0);
      }
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // For programs that call wait_for_start, so that a short timeout does not count the time that processes take to come
  // up.
  bool start() const {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (!wait_for_output(rank, "ready", 60)) return false;
    }
    folder_.write("start", "go");
    return true;
  }

  pid_t process(int rank) const { return ranks_[rank].process; }
  void send(int rank, int signal) const { kill(ranks_[rank].process, signal); }

  // The exit code, or 128 + the signal; -1 if it has not ended after so long.
  int wait(int rank, double seconds) {
    int status = 0;
    if (!comes_true([&] { return waitpid(ranks_[rank].process, &status, WNOHANG) > 0; }, seconds)) return -1;
    ranks_[rank].process = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // What it has printed so far.
  std::string output(int rank) const { return content_of(ranks_[rank].file); }

  bool wait_for_output(int rank, const std::string& text, double seconds) const {
    return comes_true([&] { return output(rank).find(text) != std::string::npos; }, seconds);
  }

 private:
  struct Rank {
    pid_t process = -1;
    std::string file;  // of its output
  };

  void spawn(int rank, int size, const std::string& program, double timeout_seconds) {
    const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(size));
    const bool is_alone = !places_.namespaces.empty();  // on its host
    set("LOCAL_RANK", std::to_string(is_alone ? 0 : rank));
    set("LOCAL_WORLD_SIZE", std::to_string(is_alone ? 1 : size));
    set("MASTER_ADDR", places_.master_address);
    set("MASTER_PORT", std::to_string(port_.number()));
    set("GPIPE_HOST", "host" + std::to_string(rank));
    set("GPIPE_SECRET", "a secret that all of them share");
    set("GPIPE_TIMEOUT", std::to_string(timeout_seconds));
    set("GPIPE_REPLICAS", std::to_string(places_.num_replicas));
    set("OMP_NUM_THREADS", "1");
    set("GPIPE_TEST_START", folder_.path("start"));
    std::vector<std::string> words;
    if (is_alone) words = {"ip", "netns", "exec", places_.namespaces[rank]};
    for (const std::string& word : command_of_program(program)) words.push_back(word);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, ranks_.back().file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawnp(&ranks_.back().process, arguments.front(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GPIPE_HOST",
          "GPIPE_SECRET", "GPIPE_TIMEOUT", "GPIPE_REPLICAS", "OMP_NUM_THREADS", "GPIPE_TEST_START"}) {
      unsetenv(name);
    }
  }

  const RankPlaces places_;
  const TemporaryFolder folder_;
  const ReservedPort port_;
  std::vector<Rank> ranks_;
};

}  // namespace gpipe::test
