// Operation weights: which operations of a flat graph make most of the work, and what is handed on at each cut.
#pragma once

#include <vector>

#include "gpipe/torchscript/cut_rules.h"
#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/layer_choice.h"

namespace gpipe::detail {

// How many convolutions, matrix products, recurrent cells and lookups are in the node and its blocks.
int num_heavy_operations(torch::jit::Node* node);

// Tensors that are handed on over many heavy operations count nothing: they go straight to where they are used, however
// the operations between are cut.
CutCosts cut_costs(const FlatGraph& flat, const CutRules& rules);

}  // namespace gpipe::detail
