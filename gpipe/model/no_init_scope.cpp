#include "gpipe/model/no_init_scope.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <mutex>

#include "gpipe/model/layer_scope.h"

namespace gpipe {
namespace {

constexpr std::int64_t kMinElements = 65536;

thread_local bool any_is_open = false;

void fill_or_not(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (detail::leave_unfilled(op, stack)) return;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, detail::kHookKey), stack);
}

// Operations that draw have their kernels already: see Note [Random streams]. These fill without drawing.
void register_no_init_kernels() {
  static auto* kernels = new torch::Library(torch::Library::IMPL, "aten", detail::kHookKey, __FILE__, __LINE__);
  for (const char* name : {"fill_.Scalar", "fill_.Tensor", "zero_"}) {
    kernels->impl(name, torch::CppFunction::makeFromBoxedFunction<&fill_or_not>());
  }
}

c10::DispatchKeySet registered_key() {
  static std::once_flag once;
  std::call_once(once, register_no_init_kernels);
  return detail::hook_key();
}

}  // namespace

NoInitScope::NoInitScope() : outer_(any_is_open), guard_(registered_key()) { any_is_open = true; }

NoInitScope::~NoInitScope() { any_is_open = outer_; }

bool NoInitScope::is_open() { return any_is_open; }

bool detail::leave_unfilled(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!any_is_open || op.schema().name().back() != '_') return false;
  const std::size_t num_arguments = op.schema().arguments().size();
  const c10::IValue self = (*stack)[stack->size() - num_arguments];
  if (!self.isTensor() || !self.toTensor().defined() || self.toTensor().numel() < kMinElements) return false;
  torch::jit::drop(*stack, num_arguments);
  stack->push_back(self);
  return true;
}

}  // namespace gpipe
