// UTF-8: which bytes are characters, and where a text is broken.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpipe {

// Bytes of the character at `at`; zero if it is not well-formed: overlong, cut off, a surrogate or above U+10FFFF.
// REQUIRES: at < text.size().
std::size_t utf8_character_bytes(std::string_view text, std::size_t at);

// Where `text` stops being UTF-8: the first byte of what is not well-formed. npos if it is UTF-8 to its end.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace gpipe
