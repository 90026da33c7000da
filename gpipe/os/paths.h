// Questions about paths, with an answer or an error that says what to do.
#pragma once

#include <string>

#include "gpipe/error.h"

namespace gpipe {

// Links are followed. Throw CheckpointError if it cannot be told, such as in a folder that one may not look into.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

}  // namespace gpipe
