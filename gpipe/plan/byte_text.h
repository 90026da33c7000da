// Bytes as messages show them.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe {

// "1.5 GiB"; below 1024, "12 bytes".
std::string byte_text(std::int64_t bytes);

// "1.5 GiB (1610612736 bytes)"
std::string exact_byte_text(std::int64_t bytes);

}  // namespace gpipe
