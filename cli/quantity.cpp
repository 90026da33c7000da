#include "cli/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/os/processors.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/nearest_name.h"
#include "gpipe/text/number.h"

namespace gpipe::cli {
namespace {

constexpr std::pair<const char*, double> kByteUnits[] = {
    {"B", 1},     {"kB", 1e3},     {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
constexpr const char* kByteUnitNames = "B, kB, MB, GB, TB, KiB, MiB, GiB or TiB";

std::string quoted(std::string_view word) {
  constexpr std::size_t kLongest = 60;
  return word.size() <= kLongest ? fmt::format("'{}'", word) : fmt::format("'{}...'", word.substr(0, kLongest));
}

// The number that `word` is, if it fits; `what` says what was expected.
template <typename Fits>
double number_that(std::string_view word, Fits fits, const std::string& what) {
  const std::optional<double> value = to_number<double>(word);
  if (!value || !std::isfinite(*value) || !fits(*value)) {
    throw InvalidArgument(fmt::format("{} is not a number {}", quoted(word), what));
  }
  return *value;
}

int threads_from(std::string_view word, int least) {
  const int count = parse_whole(word, least, std::numeric_limits<int>::max());
  if (count > most_threads()) {
    throw InvalidArgument(
        fmt::format("{} is more than the {} threads that this machine can have, with its {} processor{}", quoted(word),
                    most_threads(), num_processors(), num_processors() == 1 ? "" : "s"));
  }
  return count;
}

double unit_bytes(std::string_view word, std::string_view unit) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : kByteUnits) {
    if (unit == name) return bytes;
    names.emplace_back(name);
  }
  const std::string nearest = nearest_name(unit, names);
  throw InvalidArgument(fmt::format("{} has an unknown unit {}{}; bytes (not bits) are counted in {}", quoted(word),
                                    quoted(unit), nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
                                    kByteUnitNames));
}

// The number and its unit, finite and 0 or more, in bytes.
double parse_amount(std::string_view word) {
  const std::size_t digits = std::min(word.find_first_not_of("0123456789.+-eE"), word.size());
  const std::string_view unit = word.substr(std::min(word.find_first_not_of(' ', digits), word.size()));
  const std::optional<double> value = to_number<double>(word.substr(0, digits));
  if (!value || !std::isfinite(*value)) {
    throw InvalidArgument(fmt::format("{} is not a size such as 2GiB, 512MB or 1000000", quoted(word)));
  }
  if (*value < 0) throw InvalidArgument(fmt::format("{} is below 0", quoted(word)));
  return *value * (unit.empty() ? 1 : unit_bytes(word, unit));
}

std::string four_digits(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                                           : fmt::format("{:.4g}", value);
}

}  // namespace

int parse_whole(std::string_view word, int least, int most) {
  const std::optional<int> value = to_number<int>(word);
  if (!value || *value < least || *value > most) {
    throw InvalidArgument(fmt::format("{} is not a whole number from {} to {}", quoted(word), least, most));
  }
  return *value;
}

int parse_count(std::string_view word) { return parse_whole(word, 1, std::numeric_limits<int>::max()); }

int parse_index(std::string_view word) { return parse_whole(word, 0, std::numeric_limits<int>::max()); }

int parse_threads(std::string_view word) { return threads_from(word, 1); }

int parse_more_threads(std::string_view word) { return threads_from(word, 0); }

double parse_number(std::string_view word) {
  constexpr double kMost = 1e30;
  return number_that(
      word, [](double value) { return value >= 0 && value <= kMost; }, fmt::format("from 0 to {}", kMost));
}

double parse_seconds(std::string_view word) {
  return number_that(
      word, [](double value) { return value >= 0; }, "of seconds, 0 or more");
}

double parse_speed(std::string_view word) {
  return number_that(
      word, [](double value) { return value > 0; }, "above 0");
}

std::int64_t parse_bytes(std::string_view word) {
  if (const std::optional<std::int64_t> whole = to_number<std::int64_t>(word); whole && *whole >= 0) return *whole;
  const double bytes = parse_amount(word);
  if (bytes >= 9223372036854775808.0) {
    throw InvalidArgument(fmt::format("{} is more bytes than 64 bits can count", quoted(word)));
  }
  const bool has_unit = word.find_first_not_of("0123456789.+-eE") != std::string_view::npos;
  if (!has_unit && bytes != std::floor(bytes)) {
    throw InvalidArgument(fmt::format("{} is not a whole number of bytes; units are {}", quoted(word), kByteUnitNames));
  }
  return static_cast<std::int64_t>(std::llround(bytes));
}

double parse_bytes_per_second(std::string_view word) {
  std::string_view amount = word;
  if (amount.size() > 2 && amount.substr(amount.size() - 2) == "/s") amount.remove_suffix(2);
  const double bytes = parse_amount(amount);
  if (!(bytes > 0)) throw InvalidArgument(fmt::format("{} is not above 0 bytes a second", quoted(word)));
  return bytes;
}

std::pair<int, int> parse_pair(std::string_view word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string_view::npos) {
    throw InvalidArgument(fmt::format("{} is not two stages such as 0:3", quoted(word)));
  }
  return {parse_index(word.substr(0, colon)), parse_index(word.substr(colon + 1))};
}

std::string format_bytes(std::int64_t bytes) { return gpipe::format_bytes(bytes); }

TimeUnit time_unit(double largest_seconds) {
  constexpr TimeUnit kUnits[] = {{"s", 1}, {"ms", 1e3}, {"us", 1e6}, {"ns", 1e9}};
  if (largest_seconds == 0) return kUnits[0];
  for (const TimeUnit& unit : kUnits) {
    if (largest_seconds * unit.per_second >= 0.99995) return unit;
  }
  return kUnits[3];
}

std::string format_seconds(double seconds, const TimeUnit& unit) { return four_digits(seconds * unit.per_second); }

std::string format_seconds(double seconds) {
  const TimeUnit unit = time_unit(std::abs(seconds));
  return fmt::format("{} {}", format_seconds(seconds, unit), unit.name);
}

std::string format_percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

}  // namespace gpipe::cli
