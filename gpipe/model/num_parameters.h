// The size of a model, found without holding it in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/model/layer_chain.h"

namespace gpipe {

// The elements of each layer's parameters. A tied weight counts in the layer of its owner. Each layer is built in a
// NoInitScope and dropped again, so this takes next to no memory, however large the model is.
std::vector<std::int64_t> num_parameters_by_layer(const LayerChain& chain);

// Their sum.
std::int64_t num_parameters(const LayerChain& chain);

}  // namespace gpipe
