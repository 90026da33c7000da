#include "train/interrupt.h"

#include <csignal>

namespace gpipe::train {
namespace {

volatile std::sig_atomic_t requested = 0;

extern "C" void note_signal(int signal) {
  requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interrupt::Interrupt() {
  requested = 0;
  std::signal(SIGINT, note_signal);
  std::signal(SIGTERM, note_signal);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupt::is_requested() { return requested != 0; }

}  // namespace gpipe::train
