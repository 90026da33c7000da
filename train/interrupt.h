// Ctrl-C and SIGTERM: the step at hand is finished, then the run ends in good order.
#pragma once

#include <array>
#include <csignal>

namespace gpipe::train {

// While it lives, the first SIGINT or SIGTERM only sets a flag; the second one ends the process as usual. One at a
// time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool is_requested() { return signal() != 0; }
  // Which one came; 0 if none did.
  static int signal();

 private:
  std::array<struct sigaction, 2> before_{};
};

// While it lives, inside of an Interrupt: nothing is left to be saved, and a signal ends the process at once; SIGTERM
// with exit code 0 if that is well.
class EndAtOnce {
 public:
  explicit EndAtOnce(bool termination_is_well);
  ~EndAtOnce();
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;

 private:
  std::array<struct sigaction, 2> before_{};
};

}  // namespace gpipe::train
