#include "train/interrupt.h"

#include <unistd.h>

namespace gpipe::train {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};

volatile std::sig_atomic_t requested = 0;

extern "C" void note_signal(int signal) {
  requested = signal;
  std::signal(signal, SIG_DFL);
}

extern "C" void end_well(int /*signal*/) { _exit(0); }

// Returns what was there before.
struct sigaction replace_handler(int signal, void (*handler)(int)) {
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal, nullptr, &before);
  // Who started the program with the signal ignored wants it ignored.
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  return before;
}

}  // namespace

Interrupt::Interrupt() {
  requested = 0;
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    before_[index] = replace_handler(kSignals[index], note_signal);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) sigaction(kSignals[index], &before_[index], nullptr);
}

int Interrupt::signal() { return requested; }

EndAtOnce::EndAtOnce(bool termination_is_well) {
  for (std::size_t index = 0; index < kSignals.size(); ++index) {
    const bool ends_well = termination_is_well && kSignals[index] == SIGTERM;
    before_[index] = replace_handler(kSignals[index], ends_well ? end_well : SIG_DFL);
  }
}

EndAtOnce::~EndAtOnce() {
  for (std::size_t index = 0; index < kSignals.size(); ++index) sigaction(kSignals[index], &before_[index], nullptr);
}

}  // namespace gpipe::train
