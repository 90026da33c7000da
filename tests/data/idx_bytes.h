// The bytes of an IDX file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

inline std::string idx_bytes(const std::vector<std::uint32_t>& dims, const std::vector<std::uint8_t>& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(dims.size())};
  for (const std::uint32_t size : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  }
  bytes.append(values.begin(), values.end());
  return bytes;
}

}  // namespace gpipe::data
