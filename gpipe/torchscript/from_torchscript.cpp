#include "gpipe/torchscript/from_torchscript.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>

#include "gpipe/error.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/script_chain.h"
#include "gpipe/torchscript/script_error.h"

namespace gpipe {

LayerChain from_torchscript(const std::string& file, const TorchScriptOptions& options) {
  torch::jit::Module module;
  try {
    module = torch::jit::load(file, at::kCPU);
  } catch (const std::exception& error) {
    throw CheckpointError(file, fmt::format(": cannot be loaded as TorchScript: {}; export it with torch.jit.script or "
                                            "torch.jit.trace, and save it with torch.jit.save",
                                            detail::script_error(error.what())));
  }
  return from_torchscript(module, options);
}

LayerChain from_torchscript(const torch::jit::Module& module, const TorchScriptOptions& options) {
  return detail::script_chain(detail::flatten(module, options.inputs(), options.deferred_batch_norm()), options);
}

}  // namespace gpipe
