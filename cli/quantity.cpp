#include "cli/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "gpipe/error.h"
#include "gpipe/os/processors.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/number.h"
#include "gpipe/text/printable.h"

namespace gpipe::cli {
namespace {

using detail::most_threads;
using detail::num_processors;
using detail::quoted_word;
using detail::to_number;

// The number that `word` is, if it fits; `what` says what was expected.
template <typename Fits>
double number_that(std::string_view word, Fits fits, const std::string& what) {
  const std::optional<double> value = to_number<double>(word);
  if (!value || !std::isfinite(*value) || !fits(*value)) {
    throw InvalidArgument(fmt::format("{} is not a number {}", quoted_word(word), what));
  }
  return *value;
}

int threads_from(std::string_view word, int least) {
  const int count = parse_whole(word, least, std::numeric_limits<int>::max());
  if (count > most_threads()) {
    throw InvalidArgument(
        fmt::format("{} is more than the {} threads that this machine can have, with its {} processor{}",
                    quoted_word(word), most_threads(), num_processors(), num_processors() == 1 ? "" : "s"));
  }
  return count;
}

std::string four_digits(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                                           : fmt::format("{:.4g}", value);
}

}  // namespace

int parse_whole(std::string_view word, int least, int most) {
  const std::optional<int> value = to_number<int>(word);
  if (!value || *value < least || *value > most) {
    throw InvalidArgument(fmt::format("{} is not a whole number from {} to {}", quoted_word(word), least, most));
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

std::int64_t parse_bytes(std::string_view word) { return detail::parse_bytes(word); }

double parse_bytes_per_second(std::string_view word) { return detail::parse_bytes_per_second(word); }

std::string format_bytes(std::int64_t bytes) { return detail::format_bytes(bytes); }

std::pair<int, int> parse_pair(std::string_view word) {
  const std::size_t colon = word.find(':');
  if (colon == std::string_view::npos) {
    throw InvalidArgument(fmt::format("{} is not two stages such as 0:3", quoted_word(word)));
  }
  return {parse_index(word.substr(0, colon)), parse_index(word.substr(colon + 1))};
}

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
