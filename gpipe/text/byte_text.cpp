#include "gpipe/text/byte_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/text/nearest_name.h"
#include "gpipe/text/number.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {
namespace {

constexpr std::pair<const char*, double> kByteUnits[] = {
    {"B", 1},     {"kB", 1e3},     {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
constexpr const char* kByteUnitNames = "B, kB, MB, GB, TB, KiB, MiB, GiB or TiB";

double unit_bytes(std::string_view word, std::string_view unit) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : kByteUnits) {
    if (unit == name) return bytes;
    names.emplace_back(name);
  }
  const std::string nearest = nearest_name(unit, names);
  throw InvalidArgument(fmt::format(
      "{} has an unknown unit {}{}; bytes (not bits) are counted in {}", quoted_word(word), quoted_word(unit),
      nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), kByteUnitNames));
}

// The number and its unit, finite and 0 or more, in bytes.
double parse_amount(std::string_view word) {
  const std::size_t digits = std::min(word.find_first_not_of("0123456789.+-eE"), word.size());
  const std::string_view unit = word.substr(std::min(word.find_first_not_of(' ', digits), word.size()));
  const std::optional<double> value = to_number<double>(word.substr(0, digits));
  if (!value || !std::isfinite(*value)) {
    throw InvalidArgument(fmt::format("{} is not a size such as 2GiB, 512MB or 1000000", quoted_word(word)));
  }
  if (*value < 0) throw InvalidArgument(fmt::format("{} is below 0", quoted_word(word)));
  return *value * (unit.empty() ? 1 : unit_bytes(word, unit));
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would round to 1024 of its unit.
  for (; std::abs(value) >= 1023.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string byte_text(std::int64_t bytes) {
  return bytes < 1024 ? fmt::format("{} bytes", bytes) : format_bytes(bytes);
}

std::string exact_byte_text(std::int64_t bytes) {
  return bytes < 1024 ? byte_text(bytes) : fmt::format("{} ({} bytes)", byte_text(bytes), bytes);
}

std::int64_t parse_bytes(std::string_view word) {
  if (const std::optional<std::int64_t> whole = to_number<std::int64_t>(word); whole && *whole >= 0) return *whole;
  const double bytes = parse_amount(word);
  if (bytes >= 9223372036854775808.0) {
    throw InvalidArgument(fmt::format("{} is more bytes than 64 bits can count", quoted_word(word)));
  }
  const bool has_unit = word.find_first_not_of("0123456789.+-eE") != std::string_view::npos;
  if (!has_unit && bytes != std::floor(bytes)) {
    throw InvalidArgument(
        fmt::format("{} is not a whole number of bytes; units are {}", quoted_word(word), kByteUnitNames));
  }
  return static_cast<std::int64_t>(std::llround(bytes));
}

double parse_bytes_per_second(std::string_view word) {
  std::string_view amount = word;
  if (amount.size() > 2 && amount.substr(amount.size() - 2) == "/s") amount.remove_suffix(2);
  const double bytes = parse_amount(amount);
  if (!(bytes > 0)) throw InvalidArgument(fmt::format("{} is not above 0 bytes a second", quoted_word(word)));
  return bytes;
}

}  // namespace gpipe::detail
