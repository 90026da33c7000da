#include "gpipe/text/crc32.h"

#include <array>

namespace gpipe {
namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_table(std::uint32_t polynomial) {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? polynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

// The polynomials 0x04c11db7 and 0x1edc6f41, with their bits reversed.
constexpr Table kTable = make_table(0xedb88320);
constexpr Table kCastagnoliTable = make_table(0x82f63b78);

std::uint32_t remainder_of(std::string_view bytes, const Table& table) {
  std::uint32_t remainder = 0xffffffff;
  for (const char byte : bytes) {
    remainder = table[(remainder ^ static_cast<unsigned char>(byte)) & 0xff] ^ (remainder >> 8);
  }
  return ~remainder;
}

}  // namespace

std::uint32_t crc32(std::string_view bytes) { return remainder_of(bytes, kTable); }

std::uint32_t crc32c(std::string_view bytes) { return remainder_of(bytes, kCastagnoliTable); }

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

}  // namespace gpipe
