#include "gpipe/os/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "gpipe/os/output_file.h"
#include "gpipe/text/byte_text.h"

namespace gpipe::detail {
namespace {

namespace fs = std::filesystem;

fs::file_type type_of_path(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type != fs::file_type::none) return type;
  errno = error.value();
  throw_file_error(path, "cannot be looked at");
}

}  // namespace

PlainFile open_plain_file(const std::string& path) {
  PlainFile file;
  // Not blocking: a named pipe would wait for somebody to write into it.
  file.descriptor.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!file.descriptor.is_open() || fstat(file.descriptor.get(), &status) != 0) {
    file.error = errno;
    file.problem = std::strerror(file.error);
  } else if (!S_ISREG(status.st_mode)) {
    file.problem = "is not a plain file";
  }
  if (!file.problem.empty()) file.descriptor.reset();
  file.bytes = status.st_size;
  return file;
}

SmallFile read_small_stream(const std::function<ssize_t(char*, std::size_t)>& read, std::size_t most_bytes) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  SmallFile file;
  std::string block(std::min(kBlock, most_bytes + 1), '\0');
  while (true) {
    const ssize_t count = TEMP_FAILURE_RETRY(read(block.data(), block.size()));
    if (count == 0) return file;
    if (count < 0) {
      file.error = errno;
      file.problem = std::strerror(file.error);
    } else if (static_cast<std::size_t>(count) > most_bytes - file.content.size()) {
      file.problem = fmt::format("holds more than {}", byte_text(static_cast<std::int64_t>(most_bytes)));
    } else {
      file.content.append(block, 0, static_cast<std::size_t>(count));
      continue;
    }
    file.content.clear();
    return file;
  }
}

SmallFile read_small_stream(int file, std::size_t most_bytes) {
  return read_small_stream([&](char* bytes, std::size_t size) { return ::read(file, bytes, size); }, most_bytes);
}

SmallFile read_small_file(const std::string& path, std::size_t most_bytes) {
  const PlainFile file = open_plain_file(path);
  if (!file.problem.empty()) return {"", file.problem, file.error};
  return read_small_stream(file.descriptor.get(), most_bytes);
}

PlainFile opened_file(const std::string& path) {
  PlainFile file = open_plain_file(path);
  if (file.problem.empty()) return file;
  errno = file.error;
  if (file.error != 0) throw_file_error(path, "cannot be opened");
  throw CheckpointError(path, fmt::format(" {}; name one that is", file.problem));
}

std::string read_text(const std::string& path, std::size_t most_bytes) {
  const PlainFile file = opened_file(path);
  SmallFile text = read_small_stream(file.descriptor.get(), most_bytes);
  errno = text.error;
  if (text.error != 0) throw_file_error(path, "cannot be read");
  if (!text.is_read()) throw CheckpointError(path, fmt::format(" {}; write or fetch it again", text.problem));
  return std::move(text.content);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const PlainFile file = opened_file(path);
  if (file.bytes == 0) return;
  size_ = static_cast<std::size_t>(file.bytes);
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor.get(), 0);
  if (memory == MAP_FAILED) throw_file_error(path, "cannot be read");
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

bool is_there(const std::string& path) { return type_of_path(path) != fs::file_type::not_found; }

bool is_folder(const std::string& path) { return type_of_path(path) == fs::file_type::directory; }

}  // namespace gpipe::detail
