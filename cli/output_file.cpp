#include "cli/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/command.h"

namespace gpipe::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_exists(const std::string& path) {
  throw UsageError(fmt::format("'{}' already exists", path), "add --force to overwrite it, or name another file");
}

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw UsageError(fmt::format("cannot write '{}': {}", path, std::strerror(error)),
                   "name a file in a folder that exists and that you may write to");
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return !a.empty() && !b.empty() && fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

void check_output_file(const std::string& path, bool force) {
  if (path == "-") throw UsageError("'-' is no file to write to", "name one, or leave the option out to print");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) throw_unwritable(path, EISDIR);
  if (fs::is_regular_file(status) && !force) throw_exists(path);
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  const std::string target = fs::exists(status) ? path : folder.string();
  if (access(target.c_str(), W_OK) != 0) throw_unwritable(path, errno);
}

void write_output_file(const std::string& path, std::string_view content, bool force) {
  check_output_file(path, force);
  std::error_code ignored;
  const bool existed = fs::exists(path, ignored);
  // "x": a file that appeared since the check is not overwritten either.
  std::FILE* file = std::fopen(path.c_str(), existed ? "wb" : "wbx");
  if (file == nullptr) errno == EEXIST ? throw_exists(path) : throw_unwritable(path, errno);
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int write_error = errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed) return;
  const int error = written ? errno : write_error;
  if (fs::is_regular_file(path, ignored)) fs::remove(path, ignored);
  throw_unwritable(path, error);
}

}  // namespace gpipe::cli
