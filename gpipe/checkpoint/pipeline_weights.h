// The weights of a pipeline, wherever its stages are.
#pragma once

#include <string>

#include "gpipe/checkpoint/safetensors.h"
#include "gpipe/checkpoint/weights.h"
#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Into the layers that this rank runs; what is read may have those of other ranks, too. Else as load_weights for a
// module.
WeightsReport load_weights(const std::string& path, const Pipeline& pipeline, const LoadWeightsOptions& options = {});
WeightsReport load_weights(const Safetensors& content, const std::string& path, const Pipeline& pipeline,
                           const LoadWeightsOptions& options = {});

// All ranks call it; throws PeerError. The parameters and buffers of all stages, as weights_of gives them for a
// pipeline on threads. On rank 0; elsewhere nothing.
NamedTensors gather_weights(const Pipeline& pipeline);

}  // namespace gpipe
