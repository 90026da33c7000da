// Names of script layers: from the submodules whose operations they have.
#pragma once

#include <string>
#include <vector>

#include "gpipe/torchscript/flat_graph.h"

namespace gpipe::detail {

// One for each layer, all different: "layer1.0" if all of its heavy operations are in that submodule, the first one's
// if they have none in common, the operation's where no submodule is known. A name that is taken gets a number,
// "layer1.0_2".
std::vector<std::string> script_layer_names(const FlatGraph& flat, const std::vector<int>& cuts);

}  // namespace gpipe::detail
