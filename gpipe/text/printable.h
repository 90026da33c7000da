// Text of unknown origin, fit to be shown on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace gpipe {

// Control characters, except for the end of a line, and bytes that are not UTF-8 become visible: "\x1b". So do
// characters that are not seen but change how others are shown, such as those that reverse the direction of writing:
// "\u202e". In JSON, where the former cannot stand, that means the same as before.
std::string printable(std::string_view text);

}  // namespace gpipe
