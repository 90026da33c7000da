// Text of unknown origin, fit to be shown on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::detail {

// Control characters, except for the end of a line, and bytes that are not UTF-8 become visible: "\x1b". So do
// characters that are not seen but change how others are shown, such as those that reverse the direction of writing:
// "\u202e". In JSON, where the former cannot stand, that means the same as before.
std::string printable(std::string_view text);

// In quotes, as messages show it: as JSON writes it, and fit to be printed; cut if it has more bytes than that.
std::string quoted_name(std::string_view text, std::size_t most_bytes = 100);

// A word of a command line as messages show it: in single quotes, cut if it is long.
std::string quoted_word(std::string_view word);

}  // namespace gpipe::detail
