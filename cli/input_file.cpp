#include "cli/input_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/command.h"
#include "cli/quantity.h"

namespace gpipe::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

int close_file(std::FILE* file) { return file == stdin ? 0 : std::fclose(file); }

[[noreturn]] void throw_unreadable(const std::string& path, int error, const char* hint) {
  throw UsageError(fmt::format("cannot read {}: {}", input_name(path), std::strerror(error)), hint);
}

constexpr const char* kNameAFile = "name a file that exists, or '-' for standard input";

}  // namespace

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : fmt::format("'{}'", path); }

std::string read_input_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"),
                                                             close_file);
  if (file == nullptr) throw_unreadable(path, errno, kNameAFile);
  std::string content;
  char block[1 << 16];
  for (std::size_t size; (size = std::fread(block, 1, sizeof block, file.get())) > 0;) {
    if (size > kMostBytes - content.size()) {
      throw UsageError(fmt::format("{} holds more than {}", input_name(path), format_bytes(kMostBytes)),
                       "nothing that gpipe reads is that large; is it the right file?");
    }
    content.append(block, size);
  }
  if (std::ferror(file.get()) != 0) throw_unreadable(path, errno, kNameAFile);
  return content;
}

void require_input(const std::string& path) {
  struct stat ignored;
  if (stat(path.c_str(), &ignored) == 0 || (errno != ENOENT && errno != ENOTDIR)) return;
  throw_unreadable(path, errno, "check the path; name a file that exists");
}

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
