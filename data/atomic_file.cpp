#include "data/atomic_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/data_error.h"
#include "gpipe/os/output_file.h"

namespace gpipe::data {
namespace {

using detail::look_at_output;
using detail::OutputPath;
using detail::replace_file;

namespace fs = std::filesystem;

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw DataError(path, fmt::format("cannot write it: {}", std::strerror(error)),
                  "check the space and the permissions of its folder");
}

}  // namespace

void write_atomically(const std::string& path, std::string_view content) {
  std::error_code failure;
  if (fs::path(path).has_parent_path()) fs::create_directories(fs::path(path).parent_path(), failure);
  if (failure) throw_unwritable(path, failure.value());
  const OutputPath target = look_at_output(path);
  if (!target.may_be_replaced()) {
    throw DataError(path, fmt::format("cannot write it: it is {}, not a plain file", target.what), "move it away");
  }
  try {
    replace_file(real_file_system(), path, content);
  } catch (const CheckpointError& error) {
    throw_unwritable(path, error.error_number() == 0 ? EEXIST : error.error_number());
  }
}

}  // namespace gpipe::data
