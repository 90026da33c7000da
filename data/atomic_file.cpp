#include "data/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/data_error.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw DataError(path, fmt::format("cannot write it: {}", std::strerror(error)),
                  "check the space and the permissions of its folder");
}

// 0, or the error.
int write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return fsync(file) == 0 ? 0 : errno;
}

}  // namespace

void write_atomically(const std::string& path, std::string_view content) {
  static std::atomic<unsigned> num_written{0};
  std::error_code failure;
  if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path(), failure);
  if (failure) throw_unwritable(path, failure.value());
  const std::string part = fmt::format("{}.part-{}-{}", path, getpid(), num_written++);
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw_unwritable(path, errno);
  int error = write_all(file, content);
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(part.c_str());
  throw_unwritable(path, error);
}

}  // namespace gpipe::data
