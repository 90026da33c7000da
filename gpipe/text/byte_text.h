// Bytes as text, for reports and messages; and sums of bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace gpipe {

// "1.5 GiB", four digits; "512 B".
std::string format_bytes(std::int64_t bytes);

// As messages say it: "1.5 GiB"; below 1024, "12 bytes".
std::string byte_text(std::int64_t bytes);

// "1.5 GiB (1610612736 bytes)"
std::string exact_byte_text(std::int64_t bytes);

// Bytes that are added up exactly, whatever a profile claims, and end at the largest number there is.
__extension__ using WideBytes = __int128;

inline std::int64_t saturated(WideBytes bytes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return bytes > kMax ? kMax : static_cast<std::int64_t>(bytes);
}

}  // namespace gpipe
