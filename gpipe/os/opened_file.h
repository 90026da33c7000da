// Files that are read: opened, or an error that says what to do.
#pragma once

#include <cstddef>
#include <string>

#include "gpipe/error.h"
#include "gpipe/os/small_file.h"

namespace gpipe {

// Throws CheckpointError if it is not there, is not a plain file or cannot be opened.
PlainFile opened_file(const std::string& path);

// The content of a file of at most that many bytes. Throws CheckpointError, also if it has more.
std::string read_text(const std::string& path, std::size_t most_bytes);

}  // namespace gpipe
