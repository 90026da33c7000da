// DeferredWeights: which gradients a split backward leaves to the weight gradient.
#pragma once

namespace gpipe {

enum class DeferredWeights {
  kMatrices,  // of weights with two dimensions or more, which cost the most; those of biases and norms are computed at once
  kAll,
  kNone,  // the weight gradient has nothing to do
};

}  // namespace gpipe
