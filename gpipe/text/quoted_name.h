// Text of unknown origin in quotes, as messages show it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe {

// As JSON writes it, and fit to be printed; cut if it has more bytes than that.
std::string quoted_name(std::string_view text, std::size_t most_bytes = 100);

}  // namespace gpipe
