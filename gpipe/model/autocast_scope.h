// AutocastScope: libtorch's autocast, for as long as it lives, on any version of libtorch.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpipe {

// Operations of this thread that allow it run in `type`, such as at::kBFloat16 on at::kCPU; those of a pipeline that is
// called meanwhile as well, in its recompute and its backward, too. At the end it is as before, and the casts of
// weights that libtorch has kept are dropped, since an optimizer changes the weights. Confined to its thread.
class AutocastScope {
 public:
  AutocastScope(at::DeviceType device, at::ScalarType type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const at::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType type_before_;
};

}  // namespace gpipe
