#include "train/model_file.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace gpipe::train {
namespace {

constexpr const char* kVocabulary = "gpipe.vocabulary";

}  // namespace

std::pair<std::string, at::Tensor> vocabulary_tensor(const data::Vocabulary& vocabulary) {
  const std::string& bytes = vocabulary.bytes();
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return {kVocabulary, tensor};
}

ModelFile::ModelFile(const std::string& path) : path_(path), content_(load_safetensors(path)) {}

const std::string& ModelFile::text(const std::string& key) const {
  const auto found = content_.metadata.find(key);
  if (found == content_.metadata.end()) {
    throw CheckpointError(fmt::format("{} does not say its {}; was it written by gpipe train --save?", path_, key));
  }
  return found->second;
}

std::int64_t ModelFile::number(const std::string& key) const {
  const std::string& word = text(key);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 0) {
    throw CheckpointError(fmt::format("{}: its {} is \"{}\", not a number", path_, key, word));
  }
  return value;
}

data::Vocabulary ModelFile::vocabulary() const {
  const auto found = std::find_if(content_.tensors.begin(), content_.tensors.end(),
                                  [](const auto& item) { return item.first == kVocabulary; });
  if (found == content_.tensors.end() || found->second.scalar_type() != at::kByte) {
    throw CheckpointError(fmt::format("{} has no vocabulary; was it written by gpipe train --save?", path_));
  }
  return data::Vocabulary::from_bytes(
      std::string(static_cast<const char*>(found->second.data_ptr()), found->second.nbytes()), path_);
}

}  // namespace gpipe::train
