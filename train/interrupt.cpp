#include "train/interrupt.h"

#include <unistd.h>

namespace gpipe::train {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};

volatile std::sig_atomic_t noted = 0;

extern "C" void note_signal(int signal) {
  noted = signal;
  std::signal(signal, SIG_DFL);
}

extern "C" void end_well(int /*signal*/) { _exit(0); }

}  // namespace

SignalHandlers::SignalHandlers(Handler on_interrupt, Handler on_termination) {
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    struct sigaction action {};
    action.sa_handler = kSignals[index] == SIGINT ? on_interrupt : on_termination;
    sigaction(kSignals[index], nullptr, &before_[index]);
    if (before_[index].sa_handler != SIG_IGN) sigaction(kSignals[index], &action, nullptr);
  }
}

SignalHandlers::~SignalHandlers() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) sigaction(kSignals[index], &before_[index], nullptr);
}

SignalHandlers note_signals() {
  noted = 0;
  return {note_signal, note_signal};
}

int noted_signal() { return noted; }

SignalHandlers end_at_signals(bool termination_is_well) { return {SIG_DFL, termination_is_well ? end_well : SIG_DFL}; }

}  // namespace gpipe::train
