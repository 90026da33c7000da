// Where the model lies that a path names: the one rule for whoever reads it.
#pragma once

#include <string>

namespace gpipe::detail {

struct ModelPlace {
  enum Kind { kFile, kSet, kCheckpoint };

  Kind kind = kFile;
  std::string path;  // of the file, of the index, or of the checkpoint
};

// See load_weights. Throws CheckpointError for a folder that holds none.
ModelPlace find_model(const std::string& path);

}  // namespace gpipe::detail
