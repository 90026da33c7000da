#include "gpipe/text/byte_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace gpipe {

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

}  // namespace gpipe
