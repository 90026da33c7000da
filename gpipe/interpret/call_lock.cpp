#include "gpipe/interpret/call_lock.h"

#include <fmt/format.h>

#include "gpipe/error.h"

namespace gpipe::detail {

CallLock::Scope::Scope(CallLock& lock, const char* call) : lock_(lock) {
  if (!lock.process_.is_here()) {
    throw CallError(fmt::format(
        "{} was called in process {}, which was forked from process {}, where the pipeline was made and its "
        "workers are; fork before the pipeline is made, and make one of its own in each process",
        call, getpid(), lock.process_.number()));
  }
  const char* holder = nullptr;
  if (lock.holder_.compare_exchange_strong(holder, call)) return;
  throw CallError(
      fmt::format("{} was called while {} of the same pipeline runs: by a layer, a hook or the loss of that very step, "
                  "or by another thread; call it when that has returned, or use another pipeline",
                  call, holder));
}

CallLock::Scope::~Scope() { lock_.holder_ = nullptr; }

}  // namespace gpipe::detail
