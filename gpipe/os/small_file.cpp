#include "gpipe/os/small_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "gpipe/text/byte_text.h"

namespace gpipe {

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
    const ssize_t count = read(block.data(), block.size());
    if (count == 0) return file;
    if (count < 0 && errno == EINTR) continue;
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

}  // namespace gpipe
