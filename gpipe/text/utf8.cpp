#include "gpipe/text/utf8.h"

#include <algorithm>

namespace gpipe::detail {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

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

bool is_whitespace(std::uint32_t code) {
  return code == ' ' || (code >= '\t' && code <= '\r') || (code >= 0x1c && code <= 0x1f) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

}  // namespace

Utf8Character utf8_character(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  const std::size_t num_bytes = announced_bytes(lead);
  if (num_bytes <= 1) return {num_bytes == 0 ? 0 : lead, num_bytes};
  if (num_bytes > text.size() - at || !fits_second(lead, byte_at(text, at + 1))) return {};
  std::uint32_t code_point = lead & (0x7fU >> num_bytes);
  for (std::size_t next = at + 1; next < at + num_bytes; ++next) {
    if (!continues_character(text[next])) return {};
    code_point = code_point << 6 | (byte_at(text, next) & 0x3fU);
  }
  return {code_point, num_bytes};
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues_character(byte); }));
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t num_bytes = utf8_character(text, at).num_bytes;
    if (num_bytes == 0) return at;
    at += num_bytes;
  }
  return std::string_view::npos;
}

std::string repaired_utf8(std::string_view text, std::size_t* num_replaced) {
  std::string repaired;
  repaired.reserve(text.size());
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(text), text.size());
    repaired.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    repaired += "\xef\xbf\xbd";
    text.remove_prefix(1);
    ++count;
  }
  if (num_replaced != nullptr) *num_replaced = count;
  return repaired;
}

std::size_t whitespace_bytes(std::string_view text, std::size_t at) {
  const auto [code_point, num_bytes] = utf8_character(text, at);
  return num_bytes > 0 && is_whitespace(code_point) ? num_bytes : 0;
}

std::string_view without_trailing_whitespace(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && continues_character(text[last])) --last;
    const std::size_t num_bytes = whitespace_bytes(text, last);
    if (num_bytes == 0 || last + num_bytes != text.size()) break;
    text.remove_suffix(num_bytes);
  }
  return text;
}

std::string normalized_space(std::string_view text) {
  std::string normalized;
  normalized.reserve(text.size());
  bool pending = false;
  for (std::size_t at = 0, num_bytes = 0; at < text.size(); at += num_bytes) {
    const Utf8Character character = utf8_character(text, at);
    num_bytes = std::max<std::size_t>(character.num_bytes, 1);
    if (whitespace_bytes(text, at) > 0 || (character.num_bytes > 0 && is_control(character.code_point))) {
      pending = !normalized.empty();
    } else {
      if (pending) normalized += ' ';
      pending = false;
      normalized.append(text.substr(at, num_bytes));
    }
  }
  return normalized;
}

}  // namespace gpipe::detail
