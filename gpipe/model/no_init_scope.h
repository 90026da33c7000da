// No-init scope: layers are built without filling their weights.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace gpipe {

// While it lives, what this thread would fill in place with random numbers or a constant (uniform_, normal_, fill_,
// zero_ and their like) stays as it is if it has 65,536 elements or more: its values are undefined. The system hands
// memory out when it is written to, so such a weight takes none: a model that fits nowhere can be built layer by layer
// and looked at. Everything else a constructor does works as ever, and smaller tensors have their values.
//
// Confined to its thread. The first scope of the process registers its kernels with libtorch's dispatcher, which takes
// no lock for that: open it before other threads run layers.
class NoInitScope {
 public:
  NoInitScope();
  ~NoInitScope();
  NoInitScope(const NoInitScope&) = delete;
  NoInitScope& operator=(const NoInitScope&) = delete;

  // Whether this thread has one open.
  static bool is_open();

 private:
  const bool outer_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

namespace detail {

// Whether the call, whose arguments are on the stack, is left out; the stack then holds what it would have returned.
bool leave_unfilled(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace detail
}  // namespace gpipe
