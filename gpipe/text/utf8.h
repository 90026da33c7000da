// UTF-8: which bytes are characters, where a text is broken, and what is white space in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::detail {

struct Utf8Character {
  std::uint32_t code_point = 0;
  std::size_t num_bytes = 0;  // 0 if it is not well-formed: overlong, cut off, a surrogate or above U+10FFFF
};

// The character that begins at `at`. REQUIRES: at < text.size().
Utf8Character utf8_character(std::string_view text, std::size_t at);

// Whether the byte is one of a character, but not its first.
inline bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

// Characters, not bytes: the columns that the text takes on a terminal, where every character has the width of a
// letter.
std::size_t num_characters(std::string_view text);

// Where `text` stops being UTF-8: the first byte of what is not well-formed. npos if it is UTF-8 to its end.
std::size_t find_invalid_utf8(std::string_view text);

// The text with U+FFFD for every byte that is no part of a well-formed character; `num_replaced` says how many they
// were.
std::string repaired_utf8(std::string_view text, std::size_t* num_replaced = nullptr);

// Bytes of the whitespace character at `at`, zero if there is none. Whitespace is what Python's str.split() splits at:
// the ASCII blanks, the separators U+001C to U+001F, U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F,
// U+205F and U+3000. REQUIRES: at < text.size().
std::size_t whitespace_bytes(std::string_view text, std::size_t at);

// `text` without the whitespace at its end.
std::string_view without_trailing_whitespace(std::string_view text);

// Runs of whitespace and control characters made one space each, none at either end. So the result has no tab and no
// line break. REQUIRES: valid UTF-8.
std::string normalized_space(std::string_view text);

}  // namespace gpipe::detail
