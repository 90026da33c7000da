#include "gpipe/execute/runner/caller_state.h"

namespace gpipe {

CallerState::CallerState(bool with_grad) : with_grad_(with_grad) { std::fegetenv(&floating_point_); }

void CallerState::run(const std::function<void()>& work) const {
  const at::ThreadLocalStateGuard guard(state_);
  const at::AutoGradMode grad_mode(with_grad_);
  autocast::set_dtype(at::kCPU, cpu_dtype_);
  autocast::set_dtype(at::kCUDA, cuda_dtype_);
  // It would hand a copy of a weight that was cast without a graph to a recompute that needs one.
  at::autocast::set_autocast_cache_enabled(false);
  std::fesetenv(&floating_point_);
  work();
}

}  // namespace gpipe
