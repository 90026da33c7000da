#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/quantity.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

constexpr int kWidthElsewhere = 100;
constexpr int kNarrowest = 40;

std::vector<std::string>& messages_after_error() {
  static std::vector<std::string> messages;
  return messages;
}

[[noreturn]] void throw_output_error(int error) {
  throw UsageError(fmt::format("cannot write to standard output: {}", std::strerror(error)),
                   "what was printed so far is incomplete");
}

}  // namespace

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

Colour parse_colour(std::string_view word) {
  return static_cast<Colour>(parse_choice(word, {"auto", "always", "never"}));
}

bool shows_colour(Colour colour, int fd) {
  if (colour != Colour::kAuto) return colour == Colour::kAlways;
  return isatty(fd) != 0 && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

int output_width(int fd) {
  if (isatty(fd) == 0) return kWidthElsewhere;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::max<int>(size.ws_col, kNarrowest);
  try {
    return std::max(parse_count(environment("COLUMNS")), kNarrowest);
  } catch (const InvalidArgument&) {
    return kWidthElsewhere;
  }
}

int parse_width(std::string_view word) {
  constexpr int kLeast = 20;
  constexpr int kMost = 10000;
  const int width = parse_count(word);
  if (width >= kLeast && width <= kMost) return width;
  throw InvalidArgument(fmt::format("'{}' is not a number of columns from {} to {}", word, kLeast, kMost));
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && errno != EPIPE) throw_output_error(errno);
}

void flush_output() {
  if (std::fflush(stdout) != 0 && errno != EPIPE) throw_output_error(errno);
}

void print_error(std::string_view message, std::string_view hint) {
  std::string lines = fmt::format("gpipe: {}\n", detail::printable(message));
  if (!hint.empty()) lines += fmt::format("  {}\n", detail::printable(hint));
  for (const std::string& more : std::exchange(messages_after_error(), {})) {
    lines += fmt::format("gpipe: {}\n", detail::printable(more));
  }
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

void tell_after_error(std::string message) { messages_after_error().push_back(std::move(message)); }

}  // namespace gpipe::cli
