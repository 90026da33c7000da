// The file of a trained model: its weights, what it was trained for, and its vocabulary.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "data/vocabulary.h"
#include "gpipe/gpipe.h"

namespace gpipe::train {

// A vocabulary in the form of a tensor, so that the file is all one needs.
std::pair<std::string, at::Tensor> vocabulary_tensor(const data::Vocabulary& vocabulary);

class ModelFile {
 public:
  // Throws CheckpointError for a file that is not sound.
  explicit ModelFile(const std::string& path);

  const std::string& path() const { return path_; }
  const Safetensors& content() const { return content_; }

  // What the file says about itself. Throws CheckpointError if it does not.
  const std::string& text(const std::string& key) const;
  std::int64_t number(const std::string& key) const;
  // Throws CheckpointError if it has none.
  data::Vocabulary vocabulary() const;

 private:
  std::string path_;
  Safetensors content_;
};

}  // namespace gpipe::train
