// A folder of checkpoints, one folder each: how one comes into being, is found, and goes. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/os/file_system.h"

namespace gpipe {

// Note [A checkpoint appears at once]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
//   D/step-0000000100.tmp/     1. files are written and flushed, by every rank its own
//   D/step-0000000100.tmp/manifest.json
//                              2. by rank 0, when all are there, and read again; then the folder is flushed
//   D/step-0000000100/         3. the folder is renamed, and D is flushed: from now on the checkpoint exists
//   D/latest                   4. a file with the folder's name, replaced by rename
//   D/step-0000000050.tmp/     5. older ones that are not to be kept are renamed, then removed
//
// A kill at any point leaves what `latest` names, or an earlier one, whole. A step that is saved a second time gets a
// name of its own, step-0000000100.1, so that there is no moment without either. One training a folder: see
// lock_checkpoints.

// The manifest of a checkpoint that is whole: all files are there, of the right sizes. Their hashes are another matter:
// see load_checkpoint. Throws CheckpointError.
Manifest read_manifest(const std::string& checkpoint);

// Paths of the whole ones in the order of their steps, and of how often a step was saved; what is damaged is left out.
// Throws CheckpointError if there is no such folder.
std::vector<std::string> list_checkpoints(const std::string& folder);

// The file that names the checkpoint to resume from.
constexpr const char* kLatest = "latest";

// What `latest` says: a name, or nothing if it is not a small plain file.
std::string latest_name(const std::string& folder);

// The path of the one to resume from: what `latest` names; if that is damaged, the last of list_checkpoints. Empty if
// there is none, or no such folder.
std::string latest_checkpoint(const std::string& folder);

// `path` itself if it is a checkpoint, else the latest one in it. Throws CheckpointError if it is neither.
std::string resolve_checkpoint(const std::string& path);

struct Retention {
  int keep_last = 0;            // so many; 0: all
  std::int64_t keep_every = 0;  // besides, those of steps that are a multiple of it; 0: none
};

}  // namespace gpipe
