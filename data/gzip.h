// Whole files as bytes, unpacked if they are gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpipe::data {

// More than any file of the data sets; a file that unpacks to more is refused before it fills the memory.
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 30;

// The content of a plain or a gzip file: what it is, its first two bytes say. Throws DataError if the file cannot be
// read, is empty, is longer than `max_bytes` (unpacked or not), or is gzip that is cut off, corrupt or followed by
// something else; and if its name ends in .gz or .dz and it is not gzip.
std::string read_bytes(const std::string& path, std::int64_t max_bytes = kMaxFileBytes);

// Unpacks gzip data of one or several members. `file` is for the message. Throws DataError as above.
std::string gunzip(std::string_view bytes, const std::string& file, std::int64_t max_bytes = kMaxFileBytes);

}  // namespace gpipe::data
