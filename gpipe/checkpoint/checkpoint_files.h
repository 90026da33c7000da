// The files of a checkpoint: the shards of its stages, their index, and their hashes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpipe/checkpoint/checkpoint.h"
#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint_files/manifest.h"

namespace gpipe::detail {

// Writes, for each stage of the snapshot, model-00001-of-00004.safetensors and optimizer-00001-of-00004.safetensors
// into a folder that is there. Throws CheckpointError.
std::vector<ManifestFile> write_shards(FileSystem& files, const std::string& folder, const CheckpointSnapshot& snapshot,
                                       int num_threads);

// Writes the index of the model's shards, which it reads from their headers, puts the checkpoint in place, and removes
// older ones: to be called when all files of the manifest are there. Throws CheckpointError.
SavedCheckpoint commit_shards(FileSystem& files, const std::string& folder, Manifest manifest,
                              const Retention& retention);

// Compares the files with their hashes, several at a time. Throws CheckpointError for the first that differs.
void check_hashes(const std::string& checkpoint, const std::vector<ManifestFile>& files);
// Those of the weights, with their index.
std::vector<ManifestFile> model_files(const Manifest& manifest);

// The optimizer's slots that are `wanted`, from all shards, in memory of their own. Compares on the way the `checked`
// files of the checkpoint, whatever is in them, with their hashes. Throws CheckpointError.
NamedTensors load_slots(
    const std::string& checkpoint, const Manifest& manifest, const std::vector<ManifestFile>& checked = {},
    const std::function<bool(const std::string& name)>& wanted = [](const auto&) { return true; });

}  // namespace gpipe::detail
