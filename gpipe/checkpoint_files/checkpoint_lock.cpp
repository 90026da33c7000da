#include "gpipe/checkpoint_files/checkpoint_lock.h"

#include <fmt/format.h>

#include "gpipe/checkpoint_files/new_checkpoint.h"
#include "gpipe/os/output_file.h"
#include "gpipe/text/printable.h"

namespace gpipe::detail {

std::shared_ptr<const FileLock> lock_checkpoints(FileSystem& files, const std::string& folder) {
  make_checkpoint_folder(files, folder);
  const OutputPath latest = look_at_output(folder + "/" + kLatest);
  if (!latest.may_be_replaced()) {
    throw CheckpointError(folder, fmt::format(": '{}' in it is {}, not a plain file; remove it, or name another folder",
                                              kLatest, latest.what));
  }
  std::shared_ptr<const FileLock> lock = FileLock::take(folder + "/" + kLockName);
  if (lock->is_held() || lock->has_no_locks()) return lock;
  if (lock->holder().empty()) {
    throw CheckpointError(folder, fmt::format(": the file '{}' in it, which one training at a time holds, cannot be "
                                              "used: {}; remove it, or name another folder",
                                              kLockName, lock->problem()));
  }
  throw CheckpointError(
      folder, fmt::format(": another training saves its checkpoints here: {}; wait for its end, or name another folder "
                          "(if its machine is gone and the lock stays, remove the file '{}/{}')",
                          printable(lock->holder()), folder, kLockName));
}

}  // namespace gpipe::detail
