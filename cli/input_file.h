// Files the command reads.
#pragma once

#include <string>

#include "gpipe/plan/profile.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::cli {

// The whole file, or standard input for "-". Throws UsageError if it cannot be read or holds more than 1 GiB.
std::string read_input_file(const std::string& path);

// Throws UsageError, as read_input_file does, if there is no file and no folder of this name. For files that something
// else reads: a file that is not there is then the same error in every command.
void require_input(const std::string& path);

// Whether something is there, and whether that is a folder; links are followed. Throw CheckpointError if it cannot be
// told, such as in a folder that one may not look into.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

// Both throw UsageError, naming the file and the place, for what cannot be read or parsed.
Schedule read_schedule(const std::string& path);
Profile read_profile(const std::string& path);

// How messages call it: the path, or "standard input".
std::string input_name(const std::string& path);

}  // namespace gpipe::cli
