// Ctrl-C and SIGTERM: the step at hand is finished, then the run ends in good order.
#pragma once

#include <array>
#include <csignal>

namespace gpipe::train {

// Handlers of SIGINT and SIGTERM, for as long as it lives; those from before then. Whoever started the program with a
// signal ignored wants it ignored.
class SignalHandlers {
 public:
  using Handler = void (*)(int);

  SignalHandlers(Handler on_interrupt, Handler on_termination);
  ~SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

 private:
  std::array<struct sigaction, 2> before_{};
};

// While they live, the first SIGINT or SIGTERM is only noted; the second one ends the process as usual. One at a time.
SignalHandlers note_signals();
// Which one came since then; 0 if none did.
int noted_signal();

// While they live, inside of the others: nothing is left to be saved, and a signal ends the process at once; SIGTERM
// with exit code 0 if that is well.
SignalHandlers end_at_signals(bool termination_is_well);

}  // namespace gpipe::train
