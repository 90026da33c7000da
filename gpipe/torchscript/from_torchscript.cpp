#include "gpipe/torchscript/from_torchscript.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <exception>

#include "gpipe/error.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/script_chain.h"
#include "gpipe/torchscript/script_error.h"

namespace gpipe {
namespace {

std::string remedy_for(const std::string& text) {
  const bool is_newer = text.find("Unknown builtin op") != std::string::npos ||
                        text.find("version_number") != std::string::npos ||
                        text.find("file format version") != std::string::npos;
  if (!is_newer) return "export it with torch.jit.script or torch.jit.trace, and save it with torch.jit.save";
  return fmt::format(
      "a newer torch has written it: export it with torch {} or an older one, or build gpipe with a newer "
      "libtorch",
      TORCH_VERSION);
}

}  // namespace

LayerChain from_torchscript(const std::string& file, const TorchScriptOptions& options) {
  torch::jit::Module module;
  try {
    module = torch::jit::load(file, at::kCPU);
  } catch (const std::exception& error) {
    const std::string text = detail::script_error(error.what());
    throw CheckpointError(file, fmt::format(": cannot be loaded as TorchScript: {}; {}", text, remedy_for(text)));
  }
  return from_torchscript(module, options);
}

LayerChain from_torchscript(const torch::jit::Module& module, const TorchScriptOptions& options) {
  return detail::script_chain(detail::flatten(module, options.inputs(), options.deferred_batch_norm()), options);
}

}  // namespace gpipe
