// OwnProcess: tells a process from those that are forked from it, which have its memory, but none of its threads.
#pragma once

#include <unistd.h>

namespace gpipe::detail {

// Remembers the process in which it was made. Thread-safe.
class OwnProcess {
 public:
  pid_t number() const { return number_; }
  // False in a process that was forked since.
  bool is_here() const { return getpid() == number_; }

 private:
  pid_t number_ = getpid();
};

}  // namespace gpipe::detail
