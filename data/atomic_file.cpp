#include "data/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/data_error.h"
#include "gpipe/os/output_path.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw DataError(path, fmt::format("cannot write it: {}", std::strerror(error)),
                  "check the space and the permissions of its folder");
}

}  // namespace

void write_atomically(const std::string& path, std::string_view content) {
  static std::atomic<unsigned> num_written{0};
  std::error_code failure;
  if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path(), failure);
  if (failure) throw_unwritable(path, failure.value());
  const OutputPath target = look_at_output(path);
  if (!target.may_be_replaced()) {
    throw DataError(path, fmt::format("cannot write it: it is {}, not a plain file", target.what), "move it away");
  }
  const std::string part = fmt::format("{}.part-{}-{}", path, getpid(), num_written++);
  FileDescriptor file = open_output(part, OutputKind::kNew);
  if (!file.is_open()) throw_unwritable(path, errno);
  const bool is_written = write_all(file.get(), content.data(), content.size()) && fsync(file.get()) == 0;
  int error = is_written ? 0 : errno;
  if (close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(part.c_str());
  throw_unwritable(path, error);
}

}  // namespace gpipe::data
