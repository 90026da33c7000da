// Script chain: a flat graph, cut at given places, as a chain of layers.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/model/layer_chain.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/from_torchscript.h"
#include "gpipe/torchscript/graph_aliases.h"

namespace gpipe::detail {

// `cuts` are the first nodes of all layers but the first, in ascending order. Parameters that several layers use are
// tied if they have more than `most_shared_bytes`. REQUIRES: the cuts are allowed.
LayerChain script_chain(const FlatGraph& flat, const GraphAliases& aliases, const std::vector<int>& cuts,
                        std::int64_t most_shared_bytes);

// The same with the cuts that suit the options. Throws InvalidArgument for options that cannot be.
LayerChain script_chain(const FlatGraph& flat, const TorchScriptOptions& options);

}  // namespace gpipe::detail
