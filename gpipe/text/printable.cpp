#include "gpipe/text/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gpipe/text/utf8.h"

namespace gpipe::detail {
namespace {

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};
// Controls, and Unicode's format characters (Cf) as far as they are not seen, with the two separators of lines.
constexpr Range kUnseen[] = {{0x7f, 0x9f},     {0xad, 0xad},       {0x61c, 0x61c},     {0x180e, 0x180e},
                             {0x200b, 0x200f}, {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff},
                             {0xfff9, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};

bool is_unseen(std::uint32_t value) {
  return std::any_of(std::begin(kUnseen), std::end(kUnseen),
                     [&](const Range& range) { return range.first <= value && value <= range.last; });
}

// As JSON writes it: what has more than 16 bits, as two.
std::string escaped(std::uint32_t value) {
  if (value <= 0xffff) return fmt::format("\\u{:04x}", value);
  const std::uint32_t rest = value - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0, size = 0; at < text.size(); at += std::max<std::size_t>(size, 1)) {
    const Utf8Character character = utf8_character(text, at);
    size = character.num_bytes;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (size == 0 || (byte < 0x20 && byte != '\n')) {
      shown += fmt::format("\\x{:02x}", byte);
    } else if (is_unseen(character.code_point)) {
      shown += escaped(character.code_point);
    } else {
      shown += text.substr(at, size);
    }
  }
  return shown;
}

std::string quoted_name(std::string_view text, std::size_t most_bytes) {
  const nlohmann::json head = std::string(text.substr(0, most_bytes));
  const std::string shown =
      printable(head.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::ignore));
  return text.size() > most_bytes ? shown + "..." : shown;
}

std::string quoted_word(std::string_view word) {
  constexpr std::size_t kLongest = 60;
  return word.size() <= kLongest ? fmt::format("'{}'", word) : fmt::format("'{}...'", word.substr(0, kLongest));
}

}  // namespace gpipe::detail
