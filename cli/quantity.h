// Quantities as people write them: counts, seconds, bytes; and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::cli {

// All parsers take the whole word or throw InvalidArgument with a sentence that quotes it.

// A whole number from `least` to `most`.
int parse_whole(std::string_view word, int least, int most);

// A whole number from 1 to 2147483647, or to `kMost`.
int parse_count(std::string_view word);
template <int kMost>
int parse_count_to(std::string_view word) {
  return parse_whole(word, 1, kMost);
}

// A whole number from 1, or from 0, to the threads that this machine can have.
int parse_threads(std::string_view word);
int parse_more_threads(std::string_view word);

// A whole number from 0 to 2147483647.
int parse_index(std::string_view word);

// A number from 0 to 1e30, which a model's own numbers can hold, too.
double parse_number(std::string_view word);

// A finite number, 0 or more.
double parse_seconds(std::string_view word);

// A finite number above 0.
double parse_speed(std::string_view word);

// "1000000", "512MB", "1.5GiB": powers of 1000 (kB, MB, GB, TB) and of 1024 (KiB, MiB, GiB, TiB).
std::int64_t parse_bytes(std::string_view word);

// The same a second, above 0, with or without "/s": "10GB", "1.5GiB/s".
double parse_bytes_per_second(std::string_view word);

// "3,3,2": each part by `parse`.
template <typename Value>
std::vector<Value> parse_list(std::string_view words, Value (*parse)(std::string_view)) {
  std::vector<Value> values;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    values.push_back(parse(words.substr(begin, end - begin)));
    begin = end + 1;
  }
  return values;
}

// "0:3": two whole numbers from 0.
std::pair<int, int> parse_pair(std::string_view word);

// "1.5 GiB", four digits; "512 B".
std::string format_bytes(std::int64_t bytes);

// The unit that shows `largest_seconds` with one to three digits before the point, so that a column has one unit.
struct TimeUnit {
  const char* name;  // "s", "ms", "us", "ns"
  double per_second;
};
TimeUnit time_unit(double largest_seconds);

// Four digits or all of the whole part, without the unit.
std::string format_seconds(double seconds, const TimeUnit& unit);

// With the unit that suits the value: "12.34 ms".
std::string format_seconds(double seconds);

// "27.3 %"
std::string format_percent(double fraction);

}  // namespace gpipe::cli
