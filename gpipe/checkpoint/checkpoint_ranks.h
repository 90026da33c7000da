// Checkpoints of a pipeline over processes: what the ranks agree on, and who writes what.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/checkpoint/checkpoint.h"
#include "gpipe/os/file_lock.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {

// Note [A checkpoint of several ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
//   rank 0   | makes the folder | writes its shards | index, manifest, rename |
//   rank 1   |                  | writes its shards |                         |
//   rank 2   |                  | writes its shards |                         |
//            ^ all agree        ^ all are told      ^ all have written        ^ all are told
//
// Of replicas, which have the same, the first one writes. The folder is the same for all ranks, on one host or on a
// file system that the hosts share. What goes wrong on one rank is an error on every rank, and the checkpoint is not
// made. The ranks talk on the caller's threads only, which make the same calls in the same order; only files are
// written on others.

// What each rank has added to the record that `give` gets, by rank. If that throws on one rank, every rank throws: that
// one what it threw, the others a CheckpointError that names it, or InvalidArgument if it was one. Throws
// FingerprintError for ranks that make different calls, and PeerError. REQUIRES: the pipeline runs over ranks.
std::vector<detail::WireRecord> tell_all_ranks(const PipelineImpl& pipeline, const std::string& call,
                                               const std::function<void(detail::WireRecord& given)>& give);

// A checkpoint on its way. All ranks make the same calls.
class RankSave {
 public:
  // Begins to write what `make_snapshot` gives, on a thread of its own: its tensors have to stay as they are. Throws as
  // tell_all_ranks does.
  RankSave(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
           const std::function<CheckpointSnapshot()>& make_snapshot);
  // Until nothing is written any more. A checkpoint that was not finished is none.
  ~RankSave();
  RankSave(const RankSave&) = delete;
  RankSave& operator=(const RankSave&) = delete;

  // Whether all ranks have written their shards.
  bool is_written();
  // Waits for that, and puts the checkpoint in place. To be called once. Throws as tell_all_ranks does; then the
  // earlier checkpoints are there.
  SavedCheckpoint finish();
  // False if the ranks cannot talk any more.
  bool can_finish() const;
  // That of the folder, on rank 0; null on the others.
  const std::shared_ptr<const FileLock>& lock() const { return lock_; }

 private:
  bool is_ready() const;
  std::vector<ManifestFile> write_shards() const;
  SavedCheckpoint commit(const std::vector<detail::WireRecord>& shards) const;

  const Pipeline pipeline_;
  const SaveOptions options_;
  FileSystem& files_;
  const bool commits_;  // rank 0 does
  std::shared_ptr<const FileLock> lock_;
  CheckpointSnapshot snapshot_;
  std::string temporary_;
  std::future<std::vector<ManifestFile>> written_;
};

// The files that this rank is to check, so that all are checked once; all of them without other ranks.
std::vector<ManifestFile> own_share(const PipelineImpl& pipeline, const std::vector<ManifestFile>& files);

// What load_checkpoint has to agree on. `path` as each rank was given it; the result is the checkpoint that rank 0 has
// found there.
std::string agree_on_checkpoint(const PipelineImpl& pipeline, const std::string& path);

}  // namespace gpipe
