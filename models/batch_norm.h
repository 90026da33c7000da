// Batch norm of either kind: torch's own, or the deferred one. Both have the same parameters, buffers and names.
#pragma once

#include <cstdint>
#include <string>

#include "gpipe/gpipe.h"

namespace gpipe::models {

inline void add_batch_norm(LayerChain& chain, const std::string& name, std::int64_t channels, bool deferred) {
  if (deferred) {
    chain.add<gpipe::nn::DeferredBatchNorm2d>(name, torch::nn::BatchNormOptions(channels));
  } else {
    chain.add<torch::nn::BatchNorm2d>(name, torch::nn::BatchNormOptions(channels));
  }
}

inline void push_batch_norm(torch::nn::Sequential& layers, std::int64_t channels, bool deferred) {
  if (deferred) {
    layers->push_back(gpipe::nn::DeferredBatchNorm2d(torch::nn::BatchNormOptions(channels)));
  } else {
    layers->push_back(torch::nn::BatchNorm2d(channels));
  }
}

}  // namespace gpipe::models
