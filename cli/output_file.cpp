#include "cli/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/command.h"
#include "gpipe/os/output_file.h"
#include "gpipe/os/output_path.h"

namespace gpipe::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_exists(const std::string& path) {
  throw UsageError(fmt::format("'{}' already exists", path), "add --force to overwrite it, or name another file");
}

OutputKind check(const std::string& path, bool force, bool may_be_stream) {
  if (path == "-") throw UsageError("'-' is no file to write to", "name one, or leave the option out to print");
  const OutputPath target = look_at_output(path);
  const bool is_refused = target.kind == OutputKind::kRefused || (target.kind == OutputKind::kStream && !may_be_stream);
  if (is_refused) {
    throw UsageError(fmt::format("cannot write '{}': it is {}, not a plain file", path, target.what),
                     "it is not replaced, with --force neither: name another file");
  }
  if (target.kind == OutputKind::kPlainFile && !force) throw_exists(path);
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  // A file that is there is replaced by another one of its folder.
  const std::string& written = target.kind == OutputKind::kStream ? path : folder;
  if (access(written.c_str(), W_OK) != 0) throw_unwritable(path, errno);
  if (target.kind == OutputKind::kPlainFile && access(path.c_str(), W_OK) != 0) throw_unwritable(path, errno);
  return target.kind;
}

FileDescriptor open(const std::string& path, OutputKind kind) {
  FileDescriptor file = open_output(path, kind);
  if (!file.is_open()) errno == EEXIST ? throw_exists(path) : throw_unwritable(path, errno);
  return file;
}

void replace(const std::string& path, std::string_view content) {
  try {
    replace_file(real_file_system(), path, content);
  } catch (const CheckpointError& error) {
    throw OutputError(error.what(), "the old file is as before");
  }
}

}  // namespace

void throw_unwritable(const std::string& path, int error) {
  const std::string what = fmt::format("cannot write '{}': {}", path, std::strerror(error));
  if (is_out_of_room(error)) throw OutputError(what, remedy_for(error));
  throw UsageError(what, "name a file in a folder that exists and that you may write to");
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return !a.empty() && !b.empty() && fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

void check_output_file(const std::string& path, bool force) { check(path, force, /*may_be_stream=*/true); }

void check_replaced_file(const std::string& path, bool force) { check(path, force, /*may_be_stream=*/false); }

GrowingFile begin_output_file(const std::string& path, std::string_view content, bool force) {
  const OutputKind kind = check(path, force, /*may_be_stream=*/true);
  if (kind == OutputKind::kPlainFile) replace(path, content);
  FileDescriptor file = open(path, kind);
  GrowingFile growing(fdopen(file.get(), "a"), std::fclose);
  if (growing == nullptr) throw_unwritable(path, errno);
  file.release();
  std::setvbuf(growing.get(), nullptr, _IONBF, 0);
  return growing;
}

void write_output_file(const std::string& path, std::string_view content, bool force) {
  const OutputKind kind = check(path, force, /*may_be_stream=*/true);
  if (kind == OutputKind::kPlainFile) {
    replace(path, content);
    return;
  }
  FileDescriptor file = open(path, kind);
  const bool is_written = write_all(file.get(), content.data(), content.size());
  const int write_error = errno;
  const bool is_closed = close(file.release()) == 0;
  if (is_written && is_closed) return;
  const int error = is_written ? errno : write_error;
  if (kind == OutputKind::kNew) unlink(path.c_str());
  throw_unwritable(path, error);
}

}  // namespace gpipe::cli
