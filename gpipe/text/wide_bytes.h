// WideBytes: bytes are added up exactly, whatever a profile claims, and end at the largest number there is.
#pragma once

#include <cstdint>
#include <limits>

namespace gpipe {

__extension__ using WideBytes = __int128;

inline std::int64_t saturated(WideBytes bytes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  return bytes > kMax ? kMax : static_cast<std::int64_t>(bytes);
}

}  // namespace gpipe
