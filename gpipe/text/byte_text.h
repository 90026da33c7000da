// Bytes as text, for reports and messages.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe {

// "1.5 GiB", four digits; "512 B".
std::string format_bytes(std::int64_t bytes);

// As messages say it: "1.5 GiB"; below 1024, "12 bytes".
std::string byte_text(std::int64_t bytes);

// "1.5 GiB (1610612736 bytes)"
std::string exact_byte_text(std::int64_t bytes);

}  // namespace gpipe
