// Ctrl-C: the step at hand is finished, then the run ends in good order.
#pragma once

#include <array>
#include <csignal>

namespace gpipe::train {

// While it lives, the first SIGINT or SIGTERM only sets a flag; the second one ends the process as usual. One at a time.
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
  static constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
  std::array<struct sigaction, 2> before_{};
};

}  // namespace gpipe::train
