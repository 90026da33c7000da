#include "train/script_model.h"

#include <fmt/format.h>

#include <utility>

#include "cli/command.h"
#include "cli/files.h"

namespace gpipe::train {
namespace {

LayerChain cut(const std::string& path, const std::vector<std::string>& inputs) {
  return from_torchscript(path, TorchScriptOptions().inputs(inputs));
}

}  // namespace

ScriptModel::ScriptModel(std::string path) : path_(std::move(path)) { cli::require_input(path_); }

LayerChain ScriptModel::chain(const std::vector<std::string>& inputs) const {
  try {
    if (inputs.size() != 1) return cut(path_, inputs);
    // The only tensor of a file may be called otherwise than the only argument.
    try {
      return cut(path_, inputs);
    } catch (const InvalidArgument&) {
      return cut(path_, {});
    }
  } catch (const InvalidArgument& error) {
    throw cli::UsageError(fmt::format("--torchscript {}: {}", path_, error.what()), "");
  }
}

std::string ScriptModel::agreed_text() const {
  const std::string bytes = cli::read_input_file(path_);
  return fmt::format("--torchscript: a file of {} bytes with the hash {}", bytes.size(), content_hash_of(bytes));
}

std::vector<std::string> agreed_texts_of(const std::string& path) {
  return path.empty() ? std::vector<std::string>() : std::vector<std::string>{ScriptModel(path).agreed_text()};
}

}  // namespace gpipe::train
