// The checksum of 32 bits of zip and gzip, which manifests carry.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpipe::detail {

// crc32("123456789") is 0xcbf43926.
std::uint32_t crc32(std::string_view bytes);

}  // namespace gpipe::detail
