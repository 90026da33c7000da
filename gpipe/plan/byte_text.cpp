#include "gpipe/plan/byte_text.h"

#include <fmt/format.h>

#include <iterator>

namespace gpipe {

std::string byte_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string exact_byte_text(std::int64_t bytes) {
  return bytes < 1024 ? byte_text(bytes) : fmt::format("{} ({} bytes)", byte_text(bytes), bytes);
}

}  // namespace gpipe
