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

// The longest sequence that a file may speak of.
constexpr std::int64_t kMaxLength = 1'000'000;

// A vocabulary in the form of a tensor, so that the file is all one needs.
std::pair<std::string, at::Tensor> vocabulary_tensor(const data::Vocabulary& vocabulary);

class ModelFile {
 public:
  // Of one file, several or a checkpoint: see load_weights. Throws UsageError if it is not there,
  // CheckpointError for what is not sound.
  explicit ModelFile(const std::string& path);

  const std::string& path() const { return path_; }
  const Safetensors& content() const { return content_; }

  // What the file says about itself; nullptr if it does not, as files of other programs.
  const std::string* find(const std::string& key) const;
  // The same; throws CheckpointError if it does not.
  const std::string& text(const std::string& key) const;
  // A whole number from `least` to `greatest`; a number, 0 or more. Throw CheckpointError for anything else.
  std::int64_t number(const std::string& key, std::int64_t least, std::int64_t greatest) const;
  double real(const std::string& key) const;
  // Throws CheckpointError if it has none.
  data::Vocabulary vocabulary() const;
  // Throws CheckpointError if it was trained for another task than `command` can use.
  void require_task(const std::string& task, const std::string& command) const;
  // Throws UsageError if it is of a TorchScript model, and `torchscript`, the file that --torchscript names, is empty.
  void require_script(const std::string& torchscript) const;
  // Throws CheckpointError if `chain`, the model that the file or the command line speaks of, is far larger than what
  // the file holds: before it is built, which could take minutes and all memory. Whether each weight fits is
  // load_weights' affair.
  void check_size(const LayerChain& chain) const;

 private:
  std::string path_;
  Safetensors content_;
};

}  // namespace gpipe::train
