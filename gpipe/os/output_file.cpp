#include "gpipe/os/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpipe::detail {
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
  const int more = kind == OutputKind::kNew         ? O_APPEND | O_CREAT | O_EXCL
                   : kind == OutputKind::kPlainFile ? O_APPEND | O_NOFOLLOW
                                                    : 0;
  return FileDescriptor(open(path.c_str(), kFlags | more, 0666));
}

bool write_all(int file, const char* bytes, std::size_t size, FileSystem& files) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  while (size > 0) {
    const ssize_t written = TEMP_FAILURE_RETRY(files.write(file, bytes, std::min(size, kMostAtOnce)));
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

void throw_file_error(const std::string& path, const std::string& what) {
  const int error = errno;
  throw CheckpointError(path, fmt::format(": {}: {}; {}", what, std::strerror(error), remedy_for(error)), error);
}

OutputFile::OutputFile(FileSystem& files, const std::string& path)
    : files_(files), path_(path), file_(files.open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK)) {
  if (file_ < 0) throw_file_error(path_, "cannot be created");
  struct stat status {};
  if (fstat(file_, &status) == 0 && S_ISREG(status.st_mode)) return;
  files_.close(file_);
  throw CheckpointError(path_, ": is not a plain file; remove it, or name another one");
}

OutputFile::~OutputFile() {
  if (file_ >= 0) files_.close(file_);
}

void OutputFile::write(const void* bytes, std::size_t size) {
  if (!write_all(file_, static_cast<const char*>(bytes), size, files_)) throw_file_error(path_, "cannot be written");
}

void OutputFile::finish() {
  if (files_.fsync(file_) != 0) throw_file_error(path_, "cannot be flushed to the disk");
  const int file = file_;
  file_ = -1;
  if (files_.close(file) != 0) throw_file_error(path_, "cannot be closed");
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

void sync_directory(FileSystem& files, const std::string& path) {
  const int directory = files.open(path, O_RDONLY | O_DIRECTORY);
  if (directory < 0) throw_file_error(path, "cannot be opened");
  const int result = files.fsync(directory);
  const int error = errno;
  files.close(directory);
  errno = error;
  if (result != 0) throw_file_error(path, "cannot be flushed to the disk");
}

void check_replaceable(const std::string& path) {
  const OutputPath target = look_at_output(path);
  if (target.may_be_replaced()) return;
  throw CheckpointError(path,
                        fmt::format(" is not a plain file, but {}: it is not replaced; name another one", target.what));
}

void put_in_place(FileSystem& files, const std::string& from, const std::string& to) {
  check_replaceable(to);
  if (files.rename(from, to) != 0) throw_file_error(to, "cannot be put in place");
  sync_directory(files, directory_of(to));
}

void replace_file(FileSystem& files, const std::string& path,
                  const std::function<void(const std::string& temporary)>& write) {
  check_replaceable(path);
  const std::string temporary = fmt::format("{}.{}.tmp", path, gettid());
  try {
    write(temporary);
    put_in_place(files, temporary, path);
  } catch (...) {
    files.unlink(temporary);
    throw;
  }
}

void replace_file(FileSystem& files, const std::string& path, std::string_view content) {
  replace_file(files, path, [&](const std::string& temporary) {
    OutputFile file(files, temporary);
    file.write(content.data(), content.size());
    file.finish();
  });
}

}  // namespace gpipe::detail
