// The safetensors format: the header of a file, which says what tensors are where in it, and the index of several
// files. Plain values, no torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpipe/checkpoint_files/manifest.h"
#include "gpipe/error.h"

namespace gpipe::detail {

// Note [The file]
// ~~~~~~~~~~~~~~~
//   8 bytes  length of the header, little-endian
//   header   JSON, and spaces behind it:
//            {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//   data     the tensors' bytes, little-endian, one after the other; the offsets count from here, and leave no gaps
//
// Written here, the data begins at a multiple of 8, and tensors of wider elements come before those of narrower ones:
// every element is aligned.
struct SafetensorsType {
  const char* name;  // "F32"
  int bytes;         // of an element
};

// Null if there is no such type.
const SafetensorsType* find_safetensors_type(std::string_view name);

struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // in the data
  std::int64_t end = 0;

  std::int64_t num_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their names
  std::map<std::string, std::string> metadata;
  std::int64_t data_start = 0;  // in the file
};

// Reads the header of a file that is in memory as a whole. Throws CheckpointError for whatever does not follow the
// format to the letter. What is returned is within the file, byte for byte; nothing is allocated that the file does not
// pay for with bytes of its own.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

// What stands in front of the data: length and header. Orders the entries and fills in where they begin and end. Throws
// InvalidArgument for a name that is given twice or reserved, for what is not UTF-8, and for more than a header may
// hold.
std::string make_safetensors_header(std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata);

// The index of a model that is spread over several safetensors files, kIndexName: which tensor is in which.
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

}  // namespace gpipe::detail
