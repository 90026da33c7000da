// The files of a checkpoint: the shards of its stages, and their hashes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint_files/manifest.h"

namespace gpipe {

// What one stage puts into a checkpoint.
struct StageShard {
  int stage = 0;
  NamedTensors weights;
  NamedTensors slots;  // see OptimizerState
};

// Writes model-00001-of-00004.safetensors and optimizer-00001-of-00004.safetensors. Whoever runs the stage does this;
// the folder is there. Throws CheckpointError.
std::vector<ManifestFile> write_shard(FileSystem& files, const std::string& folder, const StageShard& shard,
                                      int num_stages, const std::map<std::string, std::string>& metadata);

// Writes the index of the model's shards, which it reads from their headers: to be called when all are there.
ManifestFile write_index(FileSystem& files, const std::string& folder, const std::vector<ManifestFile>& shards);

// Compares the files with their hashes, several at a time. Throws CheckpointError for the first that differs.
void check_hashes(const std::string& checkpoint, const std::vector<ManifestFile>& files);
// Those of the weights, with their index.
std::vector<ManifestFile> model_files(const Manifest& manifest);

// The optimizer's slots that are `wanted`, from all shards, in memory of their own. Compares on the way the `checked`
// files of the checkpoint, whatever is in them, with their hashes. Throws CheckpointError.
NamedTensors load_slots(
    const std::string& checkpoint, const Manifest& manifest, const std::vector<ManifestFile>& checked = {},
    const std::function<bool(const std::string& name)>& wanted = [](const auto&) { return true; });

}  // namespace gpipe
