#include "bleu/utf8.h"

#include <algorithm>

#include "gpipe/utf8.h"

namespace gpipe::bleu {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

bool is_continuation(unsigned byte) { return (byte & 0xc0) == 0x80; }

bool is_ascii_whitespace(unsigned byte) {
  return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1c && byte <= 0x1f);
}

bool is_wide_whitespace(unsigned first, unsigned second, unsigned third) {
  if (first == 0xe1) return second == 0x9a && third == 0x80;  // U+1680
  if (first == 0xe3) return second == 0x80 && third == 0x80;  // U+3000
  if (first != 0xe2) return false;
  if (second == 0x81) return third == 0x9f;  // U+205F
  // U+2000 to U+200A, U+2028, U+2029, U+202F
  return second == 0x80 && ((third >= 0x80 && third <= 0x8a) || third == 0xa8 || third == 0xa9 || third == 0xaf);
}

}  // namespace

std::size_t code_point_bytes(std::string_view text, std::size_t at) {
  return std::max<std::size_t>(utf8_character_bytes(text, at), 1);
}

std::size_t whitespace_bytes(std::string_view text, std::size_t at) {
  const unsigned first = byte_at(text, at);
  if (first < 0x80) return is_ascii_whitespace(first) ? 1 : 0;
  const std::size_t left = text.size() - at;
  if (first == 0xc2) return left >= 2 && (byte_at(text, at + 1) == 0x85 || byte_at(text, at + 1) == 0xa0) ? 2 : 0;
  if (first < 0xe1 || first > 0xe3 || left < 3) return 0;
  return is_wide_whitespace(first, byte_at(text, at + 1), byte_at(text, at + 2)) ? 3 : 0;
}

std::string_view without_trailing_whitespace(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && is_continuation(byte_at(text, last))) --last;
    const std::size_t size = whitespace_bytes(text, last);
    if (size == 0 || last + size != text.size()) break;
    text.remove_suffix(size);
  }
  return text;
}

}  // namespace gpipe::bleu
