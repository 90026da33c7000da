// CallerState: what the workers take over from the thread that calls them.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <cfenv>
#include <functional>

#include "gpipe/model/autocast.h"

namespace gpipe {

// Inference mode, autocast, dispatch keys, and the floating-point environment, in which flush-to-zero is. Taken at the
// forward and kept for the recompute, which has to do the same whatever the caller has switched off since.
class CallerState {
 public:
  explicit CallerState(bool with_grad);

  // Runs `work` in this state. Any thread.
  void run(const std::function<void()>& work) const;

 private:
  const bool with_grad_;
  const at::ThreadLocalState state_;
  // Not among what ThreadLocalState carries in every libtorch.
  const at::ScalarType cpu_dtype_ = autocast::dtype(at::kCPU);
  const at::ScalarType cuda_dtype_ = autocast::dtype(at::kCUDA);
  std::fenv_t floating_point_{};
};

}  // namespace gpipe
