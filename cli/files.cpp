#include "cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/command.h"
#include "gpipe/os/input_file.h"
#include "gpipe/os/output_file.h"

namespace gpipe::cli {
namespace {

using detail::FileDescriptor;
using detail::is_out_of_room;
using detail::look_at_output;
using detail::open_output;
using detail::OutputKind;
using detail::OutputPath;
using detail::read_small_stream;
using detail::remedy_for;
using detail::replace_file;
using detail::SmallFile;
using detail::write_all;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

[[noreturn]] void throw_unreadable(const std::string& path, int error, const char* hint) {
  throw UsageError(fmt::format("cannot read {}: {}", input_name(path), std::strerror(error)), hint);
}

constexpr const char* kNameAFile = "name a file that exists, or '-' for standard input";

// What `parse` makes of the text.
template <typename Parse>
auto parse_file(const std::string& path, const Parse& parse, const char* hint) {
  const std::string text = read_input_file(path);
  try {
    return parse(text);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", input_name(path), error.what()), hint);
  }
}

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

FileDescriptor open_checked(const std::string& path, OutputKind kind) {
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

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : fmt::format("'{}'", path); }

std::string read_input_file(const std::string& path) {
  FileDescriptor opened;
  if (path != "-") {
    opened.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!opened.is_open()) throw_unreadable(path, errno, kNameAFile);
  }
  SmallFile file = read_small_stream(path == "-" ? STDIN_FILENO : opened.get(), kMostBytes);
  if (file.error != 0) throw_unreadable(path, file.error, kNameAFile);
  if (!file.is_read()) {
    throw UsageError(fmt::format("{} {}", input_name(path), file.problem),
                     "nothing that gpipe reads is that large; is it the right file?");
  }
  return std::move(file.content);
}

void require_input(const std::string& path) {
  struct stat ignored;
  if (stat(path.c_str(), &ignored) == 0 || (errno != ENOENT && errno != ENOTDIR)) return;
  throw_unreadable(path, errno, "check the path: there is no file and no folder of this name");
}

bool is_there(const std::string& path) { return detail::is_there(path); }

bool is_folder(const std::string& path) { return detail::is_folder(path); }

Schedule read_schedule(const std::string& path) {
  Schedule schedule =
      parse_file(path, parse_schedule,
                 "a schedule has one line a worker, such as 'F0 F1 B0 B1'; 'gpipe schedule' prints examples");
  schedule.name = path == "-" ? "standard input" : path;
  return schedule;
}

Profile read_profile(const std::string& path) {
  return parse_file(path, parse_profile, "a profile is JSON with the costs of each layer, as gpipe profile writes it");
}

std::vector<WorkerCosts> read_workers(const std::string& path, int num_workers, const LinkCosts& link) {
  std::vector<WorkerCosts> workers = parse_file(
      path, [&link](std::string_view text) { return parse_workers(text, link); },
      "a file of workers is JSON such as {\"workers\": [{\"speed\": 1, \"memory\": \"16GiB\"}, ...]}");
  if (static_cast<int>(workers.size()) != num_workers) {
    throw UsageError(fmt::format("{} has {} {}, and the pipeline has {}", input_name(path), workers.size(),
                                 workers.size() == 1 ? "worker" : "workers", num_workers),
                     "describe each worker of the pipeline, from the first to the last");
  }
  return workers;
}

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
  FileDescriptor file = open_checked(path, kind);
  GrowingFile growing(fdopen(file.get(), "a"), std::fclose);
  if (growing == nullptr) throw_unwritable(path, errno);
  file.release();
  std::setvbuf(growing.get(), nullptr, _IONBF, 0);
  return growing;
}

void write_output_file(const std::string& path, std::string_view content, bool force) {
  const OutputKind kind = check(path, force, /*may_be_stream=*/true);
  if (kind == OutputKind::kPlainFile) return replace(path, content);
  FileDescriptor file = open_checked(path, kind);
  const bool is_written = write_all(file.get(), content.data(), content.size());
  const int write_error = errno;
  const bool is_closed = close(file.release()) == 0;
  if (is_written && is_closed) return;
  const int error = is_written ? errno : write_error;
  if (kind == OutputKind::kNew) unlink(path.c_str());
  throw_unwritable(path, error);
}

}  // namespace gpipe::cli
