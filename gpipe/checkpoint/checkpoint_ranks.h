// Checkpoints of a pipeline over processes: what the ranks agree on, and who writes what. On threads there is one rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/checkpoint/checkpoint.h"
#include "gpipe/os/file_lock.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {

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
// FingerprintError for ranks that make different calls, and PeerError.
std::vector<WireRecord> tell_all_ranks(const PipelineImpl& pipeline, const std::string& call,
                                       const std::function<void(WireRecord& given)>& give);

// A checkpoint on its way, which a thread of its own writes. All ranks make the same calls.
class PendingSave {
 public:
  PendingSave() = default;
  // Waits until nothing is written any more. Over ranks, a checkpoint that was not finished is none.
  virtual ~PendingSave() = default;
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  // Whether all ranks have written their shards.
  virtual bool is_written() = 0;
  // Waits for that, and for the checkpoint to be in place. To be called once. Throws as tell_all_ranks does; then the
  // earlier checkpoints are there.
  virtual SavedCheckpoint finish() = 0;
  // False if the ranks cannot talk any more.
  virtual bool can_finish() const = 0;
  // That of the folder, on rank 0; null on the others.
  virtual const std::shared_ptr<const FileLock>& lock() const = 0;
};

// Begins to write what `make_snapshot` gives: its tensors have to stay as they are. Throws as tell_all_ranks does.
std::unique_ptr<PendingSave> begin_save(const Pipeline& pipeline, const std::string& folder, const SaveOptions& options,
                                        const std::function<CheckpointSnapshot()>& make_snapshot);

// The files that this rank is to check, so that all are checked once.
std::vector<ManifestFile> own_share(const PipelineImpl& pipeline, const std::vector<ManifestFile>& files);

// What load_checkpoint has to agree on. `path` as each rank was given it; the result is the checkpoint that rank 0 has
// found there.
std::string agree_on_checkpoint(const PipelineImpl& pipeline, const std::string& path);

}  // namespace gpipe::detail
