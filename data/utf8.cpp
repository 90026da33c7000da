#include "data/utf8.h"

#include <algorithm>
#include <cstdint>

#include "gpipe/utf8.h"

namespace gpipe::data {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t num_bytes = 0;  // 0: not well-formed
};

// The character at `at`.
Character character_at(std::string_view text, std::size_t at) {
  const std::size_t num_bytes = utf8_character_bytes(text, at);
  if (num_bytes == 0) return {};
  const auto lead = static_cast<unsigned char>(text[at]);
  if (num_bytes == 1) return {lead, 1};
  std::uint32_t code = lead & (0x7fU >> num_bytes);
  for (std::size_t byte = 1; byte < num_bytes; ++byte) {
    code = code << 6 | (static_cast<unsigned char>(text[at + byte]) & 0x3fU);
  }
  return {code, num_bytes};
}

bool is_space(std::uint32_t code) {
  return code <= 0x20 || (code >= 0x7f && code <= 0xa0) || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

}  // namespace

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

std::string normalized_space(std::string_view text) {
  std::string normalized;
  normalized.reserve(text.size());
  bool pending = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
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
