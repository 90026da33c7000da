// Bytes as text, both ways; and sums of bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace gpipe::detail {

// "1.5 GiB", four digits; "512 B".
std::string format_bytes(std::int64_t bytes);

// As messages say it: "1.5 GiB"; below 1024, "12 bytes".
std::string byte_text(std::int64_t bytes);

// "1.5 GiB (1610612736 bytes)"
std::string exact_byte_text(std::int64_t bytes);

// "1000000", "512MB", "1.5GiB": powers of 1000 (kB, MB, GB, TB) and of 1024 (KiB, MiB, GiB, TiB). Throws
// InvalidArgument with a sentence that quotes the word unless all of it is that.
std::int64_t parse_bytes(std::string_view word);

// The same a second, above 0, with or without "/s": "10GB", "1.5GiB/s".
double parse_bytes_per_second(std::string_view word);

// Bytes that are added up exactly, whatever a profile claims, and end at the largest number there is.
__extension__ using WideBytes = __int128;

inline std::int64_t saturated(WideBytes bytes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return bytes > kMax ? kMax : static_cast<std::int64_t>(bytes);
}

}  // namespace gpipe::detail
