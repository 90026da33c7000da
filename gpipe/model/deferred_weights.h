// DeferredWeights: which gradients a split backward leaves to the weight gradient.
#pragma once

namespace gpipe {

enum class DeferredWeights {
  kMatrices,  // of weights with two dimensions or more, which cost the most; not of biases and norms
  kAll,
  kNone,  // the weight gradient has nothing to do
};

}  // namespace gpipe
