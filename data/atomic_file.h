// Files that are there whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace gpipe::data {

// Writes `content` to a new file next to `path` and renames it to `path`, so that nobody sees a part of it and a
// failure leaves what was there. Makes the folder if it is missing. Throws DataError.
void write_atomically(const std::string& path, std::string_view content);

}  // namespace gpipe::data
