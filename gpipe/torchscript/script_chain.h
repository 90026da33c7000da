// Script chain: a flat graph, cut at given places, as a chain of layers.
#pragma once

#include <vector>

#include "gpipe/model/layer_chain.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"

namespace gpipe::detail {

// `cuts` are the first nodes of all layers but the first, in ascending order. REQUIRES: they are allowed.
LayerChain script_chain(const FlatGraph& flat, const GraphAliases& aliases, const std::vector<int>& cuts);

}  // namespace gpipe::detail
