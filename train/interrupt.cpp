#include "train/interrupt.h"

namespace gpipe::train {
namespace {

volatile std::sig_atomic_t requested = 0;

extern "C" void note_signal(int signal) {
  requested = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interrupt::Interrupt() {
  requested = 0;
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    sigaction(kSignals[index], nullptr, &before_[index]);
    // Who started the program with the signal ignored wants it ignored.
    if (before_[index].sa_handler != SIG_IGN) sigaction(kSignals[index], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) sigaction(kSignals[index], &before_[index], nullptr);
}

int Interrupt::signal() { return requested; }

}  // namespace gpipe::train
