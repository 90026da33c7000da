#include "gpipe/launch/variable_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "gpipe/error.h"

namespace gpipe {
namespace {

constexpr double kMostSeconds = 1e6;

template <typename Number>
std::optional<Number> number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A value in a message: short, and without what could steer a terminal.
std::string quoted(const std::string& text) {
  constexpr std::size_t kLongest = 60;
  std::string shown = text.substr(0, kLongest);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }, '?');
  return fmt::format("'{}{}'", shown, text.size() > kLongest ? "..." : "");
}

std::string of_launcher(Launcher launcher) {
  return launcher == Launcher::kNone ? "" : fmt::format(" (of {})", name(launcher));
}

bool has_blank_or_control(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char letter) { return letter <= 0x20 || letter == 0x7f; });
}

}  // namespace

std::optional<std::string> VariableReader::text(const char* name) const {
  std::optional<std::string> value = variables_(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::optional<int> VariableReader::whole(const char* name, int least, int most) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  const std::optional<int> whole = number<int>(*value);
  if (!whole || *whole < least || *whole > most) {
    refuse(name, fmt::format("is {}, not a whole number from {} to {}", quoted(*value), least, most));
  }
  return whole;
}

std::optional<double> VariableReader::seconds(const char* name) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  const std::optional<double> seconds = number<double>(*value);
  if (!seconds || !std::isfinite(*seconds) || *seconds <= 0 || *seconds > kMostSeconds) {
    refuse(name,
           fmt::format("is {}, not a number of seconds above 0 and at most {:.0f}", quoted(*value), kMostSeconds));
  }
  return seconds;
}

std::optional<std::string> VariableReader::address(const char* name) const {
  constexpr std::size_t kLongest = 253;  // of a host's name
  std::optional<std::string> value = text(name);
  if (value && (value->size() > kLongest || has_blank_or_control(*value) || value->find('/') != std::string::npos)) {
    refuse(name, fmt::format("is {}, not the name or the address of a host", quoted(*value)));
  }
  return value;
}

std::optional<std::string> VariableReader::network_interface(const char* name) const {
  constexpr std::size_t kLongest = 15;
  std::optional<std::string> value = text(name);
  if (value && (value->size() > kLongest || has_blank_or_control(*value) || value->find('/') != std::string::npos)) {
    refuse(name, fmt::format("is {}, not the name of a network interface such as lo or eth0", quoted(*value)));
  }
  return value;
}

int VariableReader::required_whole(const char* name, int least, int most, const std::string& because) const {
  const std::optional<int> value = whole(name, least, most);
  if (!value) refuse_missing(name, because);
  return *value;
}

std::string VariableReader::required_text(const char* name, const std::string& because) const {
  std::optional<std::string> value = text(name);
  if (!value) refuse_missing(name, because);
  return *value;
}

void VariableReader::refuse_missing(const char* name, const std::string& because) const {
  throw EnvironmentError(fmt::format("{} is missing{}: {}", name, of_launcher(launcher_), because), name);
}

void VariableReader::refuse(const char* name, const std::string& problem) const {
  throw EnvironmentError(fmt::format("{}{} {}", name, of_launcher(launcher_), problem), name);
}

}  // namespace gpipe
