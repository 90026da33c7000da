// How a checkpoint comes into being, and how older ones go: see Note [A checkpoint appears at once].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint_files/checkpoint_folder.h"
#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/os/file_system.h"

namespace gpipe::detail {

// Makes the folder, with the folders above it. Throws CheckpointError; throws InvalidArgument if it has no name.
void make_checkpoint_folder(FileSystem& files, const std::string& folder);

// The steps 1, 2 to 4, and 5 of the note. They throw CheckpointError; then the checkpoints are as before.
//
// Makes the temporary folder of the checkpoint, and returns its path.
std::string begin_checkpoint(FileSystem& files, const std::string& folder, std::int64_t step);
// Puts the checkpoint in place, and returns its path.
std::string commit_checkpoint(FileSystem& files, const std::string& temporary, const Manifest& manifest);
// Never removes `newest`. Returns the paths of those that are to go, but cannot be removed.
std::vector<std::string> remove_old_checkpoints(FileSystem& files, const std::string& newest,
                                                const Retention& retention);
// Removes the temporary folder, whatever is in it. Errors are ignored: for leaving nothing behind after another error.
void discard_checkpoint(FileSystem& files, const std::string& temporary);

}  // namespace gpipe::detail
