// FileLock: a file that one process at a time holds. The kernel releases it when that process ends, however it ends.
#pragma once

#include <memory>
#include <string>

#include "gpipe/os/file_descriptor.h"

namespace gpipe::detail {

// Note [How a folder is held]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The lock is flock(2) on a file that holds, for messages, the host and the process that took it last. On NFS, Linux
// passes it on to the server, so that hosts see each other's. The file stays when the lock is released. Only its holder
// may remove it, with the folder: whoever opened it before and gets the lock after that sees that it is gone, and takes
// that of the file which has its name now. A process that is forked off without executing another program shares the
// lock, and keeps it until it ends as well.
class FileLock {
 public:
  // Takes the lock without waiting; makes the file if there is none. Whoever asks again in this process shares it.
  // Never null.
  static std::shared_ptr<const FileLock> take(const std::string& path);

  bool is_held() const { return file_.is_open(); }
  // If another process holds it: "process 4711 on host alpha", as far as that is known; else empty.
  const std::string& holder() const { return holder_; }
  // Why nobody holds it: the file can be neither made nor opened, or the file system has no locks. Empty if somebody
  // does.
  std::string problem() const;
  // Whether it is the file system that has no locks, so that nobody can hold it.
  bool has_no_locks() const;

 private:
  FileLock() = default;
  // Null if the file was removed before its lock was taken.
  static std::shared_ptr<const FileLock> try_to_take(const std::string& path);
  void lock();
  void write_holder() const;

  FileDescriptor file_;
  std::string holder_;
  int error_ = 0;  // errno of the problem
};

}  // namespace gpipe::detail
