#include "gpipe/torchscript/chain_of.h"

#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/script_chain.h"
#include "gpipe/torchscript/traced_module.h"

namespace gpipe::detail {

LayerChain chain_of_layer(const Layer& module, const Tensors& sample, const TorchScriptOptions& options) {
  FlatGraph flat = flatten(trace_module(module, sample), {}, options.deferred_batch_norm());
  flat.recorded_mode = module.module->is_training();
  return script_chain(flat, options);
}

}  // namespace gpipe::detail
