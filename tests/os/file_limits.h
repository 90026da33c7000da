// Locks that another process holds, and limits for as long as a test needs them.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <string>

#include "gpipe/os/file_descriptor.h"

namespace gpipe {

// A lock as another process takes it: flock does not mind which process it is, only that the file was opened again.
class OtherLock {
 public:
  explicit OtherLock(const std::string& path)
      : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
        is_held_(flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {}
  bool is_held() const { return is_held_; }

 private:
  detail::FileDescriptor file_;
  bool is_held_;
};

// While it lives, no file of this process, and of those it starts, grows beyond it.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace gpipe
