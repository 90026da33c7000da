#include "train/script_model.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <utility>

#include "cli/command.h"
#include "cli/files.h"

namespace gpipe::train {

ScriptModel::ScriptModel(std::string path) : path_(std::move(path)) { cli::require_input(path_); }

LayerChain ScriptModel::chain(const std::vector<std::string>& inputs, bool deferred_batch_norm) const {
  const auto cut = [&](const std::vector<std::string>& names) {
    return from_torchscript(path_, TorchScriptOptions().inputs(names).deferred_batch_norm(deferred_batch_norm));
  };
  try {
    if (inputs.size() != 1) return cut(inputs);
    // The only tensor of a file may be called otherwise than the only argument.
    try {
      return cut(inputs);
    } catch (const InvalidArgument&) {
      return cut({});
    }
  } catch (const InvalidArgument& error) {
    throw cli::UsageError(fmt::format("--torchscript {}: {}", path_, error.what()), "");
  }
}

std::string ScriptModel::agreed_text() const {
  std::ifstream file(path_, std::ios::binary);
  std::vector<char> block(std::size_t{1} << 20);
  ContentHash hash;
  std::uint64_t num_bytes = 0;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    hash.add(block.data(), static_cast<std::size_t>(file.gcount()));
    num_bytes += static_cast<std::uint64_t>(file.gcount());
  }
  return fmt::format("--torchscript: a file of {} bytes with the hash {}", num_bytes, hash.finish());
}

std::vector<std::string> agreed_texts_of(const std::string& path) {
  return path.empty() ? std::vector<std::string>() : std::vector<std::string>{ScriptModel(path).agreed_text()};
}

}  // namespace gpipe::train
