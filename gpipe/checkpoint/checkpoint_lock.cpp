#include "gpipe/checkpoint/checkpoint_lock.h"

#include <fmt/format.h>

#include "gpipe/checkpoint/checkpoint_folder.h"
#include "gpipe/text/printable.h"

namespace gpipe {

std::shared_ptr<const FileLock> lock_checkpoints(FileSystem& files, const std::string& folder) {
  make_checkpoint_folder(files, folder);
  std::shared_ptr<const FileLock> lock = FileLock::take(folder + "/" + kLockName);
  if (lock->holder().empty()) return lock;
  throw CheckpointError(
      folder, fmt::format(": another training saves its checkpoints here: {}; wait for its end, or name another folder "
                          "(if its machine is gone and the lock stays, remove the file '{}/{}')",
                          printable(lock->holder()), folder, kLockName));
}

}  // namespace gpipe
