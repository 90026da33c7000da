#include "cli/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/command.h"
#include "gpipe/os/paths.h"
#include "gpipe/os/small_file.h"

namespace gpipe::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

[[noreturn]] void throw_unreadable(const std::string& path, int error, const char* hint) {
  throw UsageError(fmt::format("cannot read {}: {}", input_name(path), std::strerror(error)), hint);
}

constexpr const char* kNameAFile = "name a file that exists, or '-' for standard input";

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
  throw_unreadable(path, errno, "check the path; name a file that exists");
}

bool is_there(const std::string& path) { return gpipe::is_there(path); }

bool is_folder(const std::string& path) { return gpipe::is_folder(path); }

Schedule read_schedule(const std::string& path) {
  const std::string text = read_input_file(path);
  try {
    Schedule schedule = parse_schedule(text);
    schedule.name = path == "-" ? "standard input" : path;
    return schedule;
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", input_name(path), error.what()),
                     "a schedule has one line a worker, such as 'F0 F1 B0 B1'; 'gpipe schedule' prints examples");
  }
}

Profile read_profile(const std::string& path) {
  const std::string json = read_input_file(path);
  try {
    return parse_profile(json);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", input_name(path), error.what()),
                     "a profile is JSON with the costs of each layer, as gpipe profile writes it");
  }
}

}  // namespace gpipe::cli
