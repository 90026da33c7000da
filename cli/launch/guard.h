// Guard: a process of its own that kills the ranks if the launcher cannot do so any more.
#pragma once

#include <sys/types.h>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::cli {

// The kernel kills the ranks themselves when the launcher dies, but not what they started. The guard notices that the
// other end of its channel is closed, and kills the process groups it was told of.
class Guard {
 public:
  // Starts it. Throws LaunchError. REQUIRES: a process with one thread.
  Guard();
  // Sends it home.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  // Where a rank writes its process group, as a pid_t, before it executes its program.
  int channel() const { return channel_.get(); }
  // The group has no members any more: its number may belong to somebody else soon.
  void forget(pid_t group);

 private:
  pid_t pid_ = -1;
  FileDescriptor channel_;
};

}  // namespace gpipe::cli
