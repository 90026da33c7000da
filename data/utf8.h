// Text in UTF-8, repaired and with its white space made plain.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::data {

// The text with U+FFFD for every byte that is no part of a well-formed character; `num_replaced` says how many they were.
std::string repaired_utf8(std::string_view text, std::size_t* num_replaced = nullptr);

// Runs of white space (Unicode's, and control characters) made one space each, none at either end. So the result has no tab
// and no line break. REQUIRES: valid UTF-8.
std::string normalized_space(std::string_view text);

}  // namespace gpipe::data
