#include "gpipe/text/crc32.h"

#include <array>

namespace gpipe::detail {
namespace {

using Table = std::array<std::uint32_t, 256>;

// The polynomial 0x04c11db7, with its bits reversed.
constexpr std::uint32_t kPolynomial = 0xedb88320;

constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr Table kTable = make_table();

}  // namespace

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t remainder = 0xffffffff;
  for (const char byte : bytes) {
    remainder = kTable[(remainder ^ static_cast<unsigned char>(byte)) & 0xff] ^ (remainder >> 8);
  }
  return ~remainder;
}

}  // namespace gpipe::detail
