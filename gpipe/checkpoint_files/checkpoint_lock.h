// The lock of a folder of checkpoints: one training at a time saves there.
#pragma once

#include <memory>
#include <string>

#include "gpipe/error.h"
#include "gpipe/os/file_lock.h"
#include "gpipe/os/file_system.h"

namespace gpipe::detail {

// In the folder. Whoever reads checkpoints does not look at it.
constexpr const char* kLockName = "lock";

// Makes the folder if need be, and takes its lock for as long as somebody has what is returned; in one process, all
// share it. Throws CheckpointError, which names host and process, if another process holds it; and if the lock or
// `latest` is something that a training cannot use. On a file system without locks nobody holds it: FileLock::problem
// says so.
std::shared_ptr<const FileLock> lock_checkpoints(FileSystem& files, const std::string& folder);

}  // namespace gpipe::detail
