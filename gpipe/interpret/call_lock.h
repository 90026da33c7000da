// CallLock: one call of a pipeline at a time, and only in the process that made it.
#pragma once

#include <atomic>

#include "gpipe/os/own_process.h"

namespace gpipe::detail {

// A call from a layer, a hook or a loss would wait for the workers, which wait for it; one in a forked process would
// wait for threads that do not exist there. Both are refused before they wait for anything.
//
// Thread-safe.
class CallLock {
 public:
  // Holds the lock for one call while it lives.
  class Scope {
   public:
    // `call` is the name of the call, for messages. Throws CallError if another call holds the lock, or in a forked
    // process.
    Scope(CallLock& lock, const char* call);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallLock& lock_;
  };

  const OwnProcess& process() const { return process_; }

 private:
  const OwnProcess process_;
  std::atomic<const char*> holder_{nullptr};
};

}  // namespace gpipe::detail
