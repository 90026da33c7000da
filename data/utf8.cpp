#include "data/utf8.h"

#include <algorithm>
#include <cstdint>

namespace gpipe::data {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t num_bytes = 0;  // 0: not well-formed
};

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// The character at the start of a text that is not empty.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const std::size_t num_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < num_bytes) return {};
  std::uint32_t code = lead & (0x7fU >> num_bytes);
  for (std::size_t byte = 1; byte < num_bytes; ++byte) {
    if (!is_continuation(text[byte])) return {};
    code = code << 6 | (static_cast<unsigned char>(text[byte]) & 0x3fU);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[num_bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, num_bytes};
}

bool is_space(std::uint32_t code) {
  return code <= 0x20 || (code >= 0x7f && code <= 0xa0) || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

}  // namespace

std::size_t invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t num_bytes = first_character(text.substr(at)).num_bytes;
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
    const std::size_t valid = std::min(invalid_utf8(text), text.size());
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

std::string normalized_space(std::string_view text) {
  std::string normalized;
  normalized.reserve(text.size());
  bool pending = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    const std::size_t num_bytes = character.num_bytes == 0 ? 1 : character.num_bytes;
    if (character.num_bytes > 0 && is_space(character.code)) {
      pending = !normalized.empty();
    } else {
      if (pending) normalized += ' ';
      pending = false;
      normalized.append(text.substr(at, num_bytes));
    }
    at += num_bytes;
  }
  return normalized;
}

}  // namespace gpipe::data
