// CallerState: what the workers take over from the thread that calls them.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <c10/core/AutogradState.h>
#endif

#include <cfenv>
#include <functional>

#include "gpipe/model/autocast.h"

namespace gpipe::detail {

// Inference mode, autocast, dispatch keys, and the floating-point environment, in which flush-to-zero is. Taken at the
// forward and kept for the recompute, which has to do the same whatever the caller has switched off since.
class CallerState {
 public:
  explicit CallerState(bool with_grad) : with_grad_(with_grad) { std::fegetenv(&floating_point_); }

  // Runs `work` in this state. Any thread.
  void run(const std::function<void()>& work) const {
    const at::ThreadLocalStateGuard guard(state_);
    const at::AutoGradMode grad_mode(with_grad_);
#if TORCH_VERSION_MAJOR >= 2
    // Backwards on a device run in this thread, not in the one that autograd has for all stages on that device.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
#endif
    autocast::set_dtype(at::kCPU, cpu_dtype_);
    autocast::set_dtype(at::kCUDA, cuda_dtype_);
    // It would hand a copy of a weight that was cast without a graph to a recompute that needs one.
    at::autocast::set_autocast_cache_enabled(false);
    std::fesetenv(&floating_point_);
    work();
  }

 private:
  const bool with_grad_;
  const at::ThreadLocalState state_;
  // Not among what ThreadLocalState carries in every libtorch.
  const at::ScalarType cpu_dtype_ = autocast::dtype(at::kCPU);
  const at::ScalarType cuda_dtype_ = autocast::dtype(at::kCUDA);
  std::fenv_t floating_point_{};
};

}  // namespace gpipe::detail
