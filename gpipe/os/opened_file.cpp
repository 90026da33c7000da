#include "gpipe/os/opened_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "gpipe/os/output_file.h"

namespace gpipe {

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

}  // namespace gpipe
