// The checksum CRC-32C (Castagnoli), which TensorFlow's records carry.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpipe::train {

// crc32c("123456789") is 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);

// As records store it: rotated by 15 bits plus a constant, so that the checksum of data that holds checksums is no
// special one.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace gpipe::train
