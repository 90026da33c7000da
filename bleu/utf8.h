// Code points and whitespace in UTF-8, as Python's str sees them.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpipe::bleu {

// Bytes of the code point at `at`; one for a byte that begins none, so that a loop over any bytes ends.
// REQUIRES: at < text.size().
std::size_t code_point_bytes(std::string_view text, std::size_t at);

// Bytes of the whitespace character at `at`, zero if there is none. Whitespace is what Python's str.split() splits at: the
// ASCII blanks, the separators U+001C to U+001F, U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F
// and U+3000. REQUIRES: at < text.size().
std::size_t whitespace_bytes(std::string_view text, std::size_t at);

// `text` without the whitespace at its end.
std::string_view without_trailing_whitespace(std::string_view text);

}  // namespace gpipe::bleu
