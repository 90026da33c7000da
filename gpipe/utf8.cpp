#include "gpipe/utf8.h"

namespace gpipe {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

bool is_continuation(unsigned byte) { return (byte & 0xc0) == 0x80; }

// Bytes that the first byte of a code point announces; zero for a byte that can be no first byte.
std::size_t announced_bytes(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

// The least and the greatest second byte that make `lead` neither overlong nor a surrogate nor above U+10FFFF.
bool fits_second(unsigned lead, unsigned second) {
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned greatest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= least && second <= greatest;
}

}  // namespace

std::size_t utf8_character_bytes(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  const std::size_t size = announced_bytes(lead);
  if (size <= 1) return size;
  if (size > text.size() - at || !fits_second(lead, byte_at(text, at + 1))) return 0;
  for (std::size_t next = at + 2; next < at + size; ++next) {
    if (!is_continuation(byte_at(text, next))) return 0;
  }
  return size;
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = utf8_character_bytes(text, at);
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

}  // namespace gpipe
