// The checksums of 32 bits that formats ask for: CRC-32 of zip and gzip, which manifests carry, and CRC-32C of
// TensorFlow's records.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpipe {

// crc32("123456789") is 0xcbf43926.
std::uint32_t crc32(std::string_view bytes);

// Castagnoli's: crc32c("123456789") is 0xe3069283.
std::uint32_t crc32c(std::string_view bytes);

// As TensorFlow's records store it: rotated by 15 bits plus a constant, so that the checksum of data that holds
// checksums is no special one.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace gpipe
