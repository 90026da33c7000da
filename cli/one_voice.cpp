#include "cli/one_voice.h"

#include <csignal>
#include <ctime>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"

namespace gpipe::cli {
namespace {

constexpr time_t kGraceSeconds = 5;

bool is_first_on_this_host() {
  try {
    return read_world().local_rank == 0;
  } catch (const Error&) {  // variables that make no sense: nobody knows
    return true;
  }
}

}  // namespace

bool is_told_by_the_first_rank() {
  if (is_first_on_this_host()) return false;
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  if (sigprocmask(SIG_BLOCK, &end, nullptr) != 0) return false;
  const timespec grace{kGraceSeconds, 0};
  return sigtimedwait(&end, nullptr, &grace) > 0;
}

}  // namespace gpipe::cli
