#include "gpipe/os/paths.h"

#include <cerrno>
#include <filesystem>

#include "gpipe/os/output_file.h"

namespace gpipe {
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

bool is_there(const std::string& path) { return type_of_path(path) != fs::file_type::not_found; }

bool is_folder(const std::string& path) { return type_of_path(path) == fs::file_type::directory; }

}  // namespace gpipe
