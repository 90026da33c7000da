// What is in a file of weights or in a checkpoint, and whether it is sound, without a tensor being made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/checkpoint_files/manifest.h"

namespace gpipe {

struct StoredTensor {
  std::string file;  // in the folder of the others
  std::string name;
  std::string type;  // as the format calls it: "F32"
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;
};

struct StoredFile {
  ManifestFile expected;
  std::string problem;  // empty if it is sound
};

struct StoredModel {
  std::string path;  // of the checkpoint that was found, if a folder of them was named
  std::string kind;  // "safetensors file", "safetensors files" or "checkpoint"
  std::vector<StoredTensor> tensors;
  std::vector<StoredTensor> slots;  // the optimizer's state; see Manifest::optimizer
  std::map<std::string, std::string> metadata;
  std::optional<Manifest> manifest;  // of a checkpoint
  std::vector<StoredFile> files;     // those whose hash is known

  bool is_sound() const;
};

// Of any of the paths that load_weights takes. Every file whose hash is known is read as a whole, and one that is
// damaged is told of by its problem. Types that this libtorch does not have are no error. Throws CheckpointError for
// what does not follow the formats to the letter.
StoredModel inspect_model(const std::string& path);

}  // namespace gpipe
