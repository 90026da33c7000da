// Deferred norms: the batch norms of a flat graph move their running statistics once a mini-batch.
#pragma once

#include "gpipe/torchscript/flat_graph.h"

namespace gpipe::detail {

// Every aten::batch_norm with running statistics that are slots becomes an operation that calls the ScriptBatchNorm of
// the layer that runs it; the operations that count its batches are taken away. Fills `deferred_norms`. The slots stay
// inputs of the operation. Throws InvalidArgument for a module that is a batch norm itself.
void defer_batch_norms(FlatGraph& flat);

// The scope of the batch norm that the node, made by `defer_batch_norms`, calls; nothing for other nodes.
std::optional<std::string> deferred_norm_of(const torch::jit::Node& node);

}  // namespace gpipe::detail
