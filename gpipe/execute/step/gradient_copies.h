// GradientCopies: the gradients of parameters, to be put back when a step must not count.
#pragma once

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Thread-compatible.
class GradientCopies {
 public:
  explicit GradientCopies(Tensors parameters);
  void put_back() const;

 private:
  Tensors parameters_;
  Tensors copies_;  // undefined where there was no gradient
};

}  // namespace gpipe::detail
