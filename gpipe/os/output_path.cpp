#include "gpipe/os/output_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "gpipe/os/blocked_signal.h"

namespace gpipe {
namespace {

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a link";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISCHR(mode)) return "a device";
  if (S_ISBLK(mode)) return "a disk";
  return "a socket";
}

}  // namespace

OutputPath look_at_output(const std::string& path) {
  struct stat status {};
  // What cannot be looked at is new as well: whoever opens it is told why.
  if (lstat(path.c_str(), &status) != 0) return {OutputKind::kNew, ""};
  if (S_ISREG(status.st_mode)) return {OutputKind::kPlainFile, ""};
  const char* const name = kind_name(status.st_mode);
  const bool is_known = !S_ISLNK(status.st_mode) || stat(path.c_str(), &status) == 0;
  const bool is_stream = is_known && (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode));
  return {is_stream ? OutputKind::kStream : OutputKind::kRefused, name};
}

FileDescriptor open_output(const std::string& path, OutputKind kind) {
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  switch (kind) {
    case OutputKind::kNew:
      return FileDescriptor(open(path.c_str(), kFlags | O_APPEND | O_CREAT | O_EXCL, 0666));
    case OutputKind::kPlainFile:
      return FileDescriptor(open(path.c_str(), kFlags | O_APPEND | O_NOFOLLOW));
    case OutputKind::kStream:
      return FileDescriptor(open(path.c_str(), kFlags));
    case OutputKind::kRefused:
      break;
  }
  errno = EINVAL;
  return {};
}

bool write_all(int file, const char* bytes, std::size_t size) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  const BlockedSignal scope(SIGXFSZ);
  while (size > 0) {
    const ssize_t written = write(file, bytes, std::min(size, kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

const char* remedy_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or name another folder";
    case EFBIG:
      return "raise the limit of file sizes ('ulimit -f'), or name another folder";
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return "check the path and its permissions";
    default:
      return "check the disk, or name another folder";
  }
}

bool is_out_of_room(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO; }

}  // namespace gpipe
