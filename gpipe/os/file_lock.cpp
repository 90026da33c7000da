#include "gpipe/os/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "gpipe/os/input_file.h"
#include "gpipe/os/network.h"
#include "gpipe/os/output_file.h"

namespace gpipe::detail {
namespace {

using FileId = std::pair<dev_t, ino_t>;

// The locks of this process. A lock belongs to an open file: a second one of this process would be refused.
struct HeldLocks {
  std::mutex mutex;
  std::map<FileId, std::weak_ptr<const FileLock>> of_file;
};

HeldLocks& held_locks() {
  static auto* const locks = new HeldLocks;  // never destroyed: threads may end after main
  return *locks;
}

// Whoever may only read the file, because another user has made it, can lock it all the same.
FileDescriptor open_lock(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file;
  file.reset(open(path.c_str(), kFlags | O_RDWR | O_CREAT, 0666));
  if (!file.is_open() && (errno == EACCES || errno == EROFS)) file.reset(open(path.c_str(), kFlags | O_RDONLY));
  return file;
}

}  // namespace

std::shared_ptr<const FileLock> FileLock::take(const std::string& path) {
  std::shared_ptr<const FileLock> lock;
  while (lock == nullptr) lock = try_to_take(path);
  return lock;
}

std::shared_ptr<const FileLock> FileLock::try_to_take(const std::string& path) {
  HeldLocks& held = held_locks();
  const std::lock_guard<std::mutex> guard(held.mutex);
  const std::shared_ptr<FileLock> lock(new FileLock);
  struct stat status {};
  lock->file_ = open_lock(path);
  if (!lock->file_.is_open() || fstat(lock->file_.get(), &status) != 0) {
    lock->error_ = errno;
  } else if (!S_ISREG(status.st_mode)) {
    lock->error_ = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  } else {
    std::weak_ptr<const FileLock>& known = held.of_file[{status.st_dev, status.st_ino}];
    if (std::shared_ptr<const FileLock> shared = known.lock()) return shared;
    lock->lock();
    if (lock->is_held()) {
      if (fstat(lock->file_.get(), &status) == 0 && status.st_nlink == 0) return nullptr;
      known = lock;
    }
  }
  if (lock->error_ != 0) lock->file_.reset();
  return lock;
}

std::string FileLock::problem() const { return error_ == 0 ? "" : std::strerror(error_); }

bool FileLock::has_no_locks() const {
  return error_ == ENOLCK || error_ == ENOSYS || error_ == EOPNOTSUPP || error_ == ENOTSUP;
}

void FileLock::lock() {
  if (TEMP_FAILURE_RETRY(flock(file_.get(), LOCK_EX | LOCK_NB)) == 0) {
    write_holder();
    return;
  }
  if (errno == EWOULDBLOCK) {
    constexpr std::size_t kMostBytes = 1024;
    const std::string text = read_small_stream(file_.get(), kMostBytes).content;
    holder_ = text.substr(0, text.find('\n'));
    if (holder_.empty()) holder_ = "another process";
  } else {
    error_ = errno;
  }
  file_.reset();
}

// For messages only, so that it is no failure if it cannot be written.
void FileLock::write_holder() const {
  const std::string text = fmt::format("process {} on host {}\n", getpid(), host_name());
  if (ftruncate(file_.get(), 0) != 0 || !write_all(file_.get(), text.data(), text.size())) return;
  fsync(file_.get());  // so that other hosts see it
}

}  // namespace gpipe::detail
