// Ctrl-C: the step at hand is finished, then the run ends in good order.
#pragma once

namespace gpipe::train {

// While it lives, the first SIGINT or SIGTERM only sets a flag; the second one ends the process as usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool is_requested();
};

}  // namespace gpipe::train
