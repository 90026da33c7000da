// StepListener: a module that keeps something from micro-batch to micro-batch and settles it once per mini-batch.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpipe {

// Who runs the micro-batches calls exactly one of the two for every module that is one, when the last forward of the
// mini-batch has returned on every thread (a backward may still follow), or has failed.
class StepListener {
 public:
  virtual ~StepListener() = default;
  // Where replicas of the model run parts of the mini-batch, before end_step: what this one has kept, as doubles, and
  // what others have. Undefined: nothing that concerns the others.
  virtual at::Tensor kept() const { return {}; }
  virtual void keep(const at::Tensor& /*of_another*/) {}
  // Every forward of the mini-batch went well.
  virtual void end_step() = 0;
  // The step failed: what it left is dropped, as if it had never run.
  virtual void abandon_step() = 0;
};

}  // namespace gpipe
