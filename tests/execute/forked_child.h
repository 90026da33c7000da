// Work in a process that is forked from the test, ended after a while whatever it waits for.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace gpipe::test {

constexpr int kChildDone = 0;
constexpr int kChildThrew = 3;

// kChildDone if `work` returned, kChildThrew if it threw, else 128 + the signal that ended the child, which is
// SIGALRM's after `seconds`. The child ends without the destructors of anything that `work` has left.
inline int run_forked(const std::function<void()>& work, unsigned seconds = 20) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    int code = kChildDone;
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the child: %s\n", error.what());
      code = kChildThrew;
    }
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace gpipe::test
