// Meta layer: a layer whose weights have shapes and types, but no data and no memory.
#pragma once

#include <torch/nn/module.h>

#include "gpipe/model/layer.h"
#include "gpipe/model/layer_chain.h"

namespace gpipe {

// The layer on the Meta device, with use_meta_kernels(). Built under a NoInitScope, see there: its large weights take
// none of the system's memory meanwhile. Tensors that are neither parameters nor buffers stay where they are.
Layer build_on_meta(const LayerChain& chain, int layer);

// Turns every parameter and buffer of the module into a Meta tensor, in place: whoever holds one holds a Meta tensor
// afterwards. Module::to cannot do that. Gradients are dropped; there is no way back.
void move_to_meta(torch::nn::Module& module);

}  // namespace gpipe
