#include "gpipe/torchscript/from_torchscript.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>
#include <memory>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/cut_rules.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"
#include "gpipe/torchscript/layer_choice.h"
#include "gpipe/torchscript/operation_weights.h"
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
  if (options.min_layers() < 1) {
    throw InvalidArgument(fmt::format("min_layers is {}; it must be 1 or more", options.min_layers()));
  }
  const detail::FlatGraph flat = detail::flatten(module, options.inputs());
  const detail::GraphAliases aliases(flat);
  const detail::CutCosts costs = detail::cut_costs(flat, detail::find_cuts(flat, aliases));
  return detail::script_chain(flat, aliases, detail::choose_cuts(costs, options.min_layers()),
                              options.most_shared_bytes());
}

}  // namespace gpipe
