// The index of a model that is spread over several safetensors files: which tensor is in which.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/error.h"

namespace gpipe {

// {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}
struct SafetensorsIndex {
  std::int64_t total_bytes = 0;  // of the tensors; 0 if it is not said
  std::map<std::string, std::string> file_of;
};

// "model-00002-of-00004.safetensors", counted from 0.
std::string shard_name(const std::string& stem, int shard, int num_shards);

std::string to_json(const SafetensorsIndex& index);
// Throws CheckpointError for anything else, and for a file that is not in the index's own folder.
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& path);

// Throws CheckpointError unless its files hold exactly what it says: `found` are all tensors in them, each with its
// file.
void check_shards(const SafetensorsIndex& index, const std::string& index_path,
                  const std::vector<std::pair<std::string, std::string>>& found);

}  // namespace gpipe
