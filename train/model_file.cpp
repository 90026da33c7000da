#include "train/model_file.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <new>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/quantity.h"
#include "train/checkpoint_dir.h"
#include "train/script_model.h"

namespace gpipe::train {
namespace {

constexpr const char* kVocabulary = "gpipe.vocabulary";
// A model of so many elements is built at once, however few the file has; load_weights then names what does not fit.
constexpr std::int64_t kFewElements = std::int64_t{1} << 24;
constexpr const char* kRemedy = "name a file that gpipe train --save has written, or a checkpoint";

// Of a layer's parameters and buffers, without filling them; nothing if the system would not even give it the
// addresses.
std::optional<std::int64_t> num_elements(const LayerChain& chain, int layer) {
  try {
    const Layer built = chain.build(layer, /*seed=*/0);
    std::int64_t count = 0;
    for (const auto& parameter : built.module->named_parameters()) {
      if (!chain.is_tied_user(layer, chain.scope(layer) + parameter.key())) count += parameter.value().numel();
    }
    for (const at::Tensor& buffer : built.module->buffers()) count += buffer.numel();
    return count;
  } catch (const c10::Error&) {
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace

std::pair<std::string, at::Tensor> vocabulary_tensor(const data::Vocabulary& vocabulary) {
  std::string bytes = vocabulary.bytes();
  return {kVocabulary, at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte).clone()};
}

ModelFile::ModelFile(const std::string& path) : path_(path) {
  cli::require_input(path);
  content_ = load_model(path);
  warn_of_damaged(path);
}

const std::string* ModelFile::find(const std::string& key) const {
  const auto found = content_.metadata.find(key);
  return found == content_.metadata.end() ? nullptr : &found->second;
}

const std::string& ModelFile::text(const std::string& key) const {
  if (const std::string* found = find(key)) return *found;
  throw CheckpointError(fmt::format("{} does not say its {}; {}", path_, key, kRemedy));
}

std::int64_t ModelFile::number(const std::string& key, std::int64_t least, std::int64_t greatest) const {
  const std::string& word = text(key);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc() && end == word.data() + word.size() && value >= least && value <= greatest) return value;
  throw CheckpointError(
      fmt::format("{}: its {} is \"{}\", not a number from {} to {}; {}", path_, key, word, least, greatest, kRemedy));
}

double ModelFile::real(const std::string& key) const {
  try {
    return cli::parse_number(text(key));
  } catch (const InvalidArgument& error) {
    throw CheckpointError(fmt::format("{}: its {}: {}; {}", path_, key, error.what(), kRemedy));
  }
}

data::Vocabulary ModelFile::vocabulary() const {
  const auto found = std::find_if(content_.tensors.begin(), content_.tensors.end(),
                                  [](const auto& item) { return item.first == kVocabulary; });
  if (found == content_.tensors.end() || found->second.scalar_type() != at::kByte) {
    throw CheckpointError(fmt::format("{} has no vocabulary; {}", path_, kRemedy));
  }
  return data::Vocabulary::from_bytes(
      std::string(static_cast<const char*>(found->second.data_ptr()), found->second.nbytes()), path_);
}

void ModelFile::require_task(const std::string& task, const std::string& command) const {
  if (text("gpipe.task") == task) return;
  throw CheckpointError(fmt::format("{} was trained by 'gpipe train {}', but 'gpipe {}' needs one of 'gpipe train {}'",
                                    path_, text("gpipe.task"), command, task));
}

void ModelFile::require_script(const std::string& torchscript) const {
  const std::string* const model = find("gpipe.model");
  if (!torchscript.empty() || model == nullptr || *model != kScriptModel) return;
  throw cli::UsageError(fmt::format("{} holds the weights of a TorchScript model, but not the model", path_),
                        "add --torchscript FILE, what it was trained from");
}

void ModelFile::check_size(const LayerChain& chain) const {
  std::int64_t num_held = 0;
  for (const auto& [name, tensor] : content_.tensors) num_held += tensor.numel();
  const NoInitScope scope;
  std::int64_t num_needed = 0;
  for (int layer = 0; layer < chain.size(); ++layer) {
    const std::optional<std::int64_t> count = num_elements(chain, layer);
    if (count) num_needed += *count;
    if (count && num_needed <= std::max(num_held, kFewElements)) continue;
    throw CheckpointError(
        fmt::format("{} holds {} numbers, but the model it is said to be of has more in its first {} of {} layers; {}",
                    path_, num_held, layer + 1, chain.size(), kRemedy));
  }
}

}  // namespace gpipe::train
