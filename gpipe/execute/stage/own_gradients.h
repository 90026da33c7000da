// OwnGradients: what becomes the gradient of a parameter has memory of its own.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <set>
#include <vector>

#include "gpipe/model/layer.h"

namespace gpipe::detail {

// Note [Gradients that share memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The first gradient that arrives at a parameter without one becomes its .grad as it is, even if it is a view of a
// gradient that others still read: the stage before, which has been sent it, or a weight gradient that was put off. The
// next micro-batch would then add to what they read. A hook before the accumulation copies such a gradient.
//
// Confined to its worker.
class OwnGradients {
 public:
  // Before the first backward of a step: of all parameters that have no gradient.
  void watch(const std::vector<ChainLayer>& layers);

 private:
  std::set<std::shared_ptr<torch::autograd::Node>> watched_;  // the accumulations that have the hook
};

}  // namespace gpipe::detail
