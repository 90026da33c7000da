#include "gpipe/torchscript/assigned_attribute.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

void assign(torch::jit::Stack& stack) {
  const std::string name = torch::jit::pop(stack).toStringRef();
  const at::Tensor value = torch::jit::pop(stack).toTensor();
  const at::Tensor buffer = torch::jit::pop(stack).toTensor();
  if (value.sizes() != buffer.sizes() || value.scalar_type() != buffer.scalar_type()) {
    throw InvalidArgument(
        fmt::format("\"{}\" is [{}] of {} and gets [{}] of {}; a buffer that is assigned must keep its shape and type",
                    name, fmt::join(buffer.sizes(), ", "), c10::toString(buffer.scalar_type()),
                    fmt::join(value.sizes(), ", "), c10::toString(value.scalar_type())));
  }
  const at::NoGradGuard no_grad;
  buffer.copy_(value.detach());
}

}  // namespace

c10::Symbol assignment_symbol() {
  static const auto* const registered = new torch::jit::RegisterOperators({torch::jit::Operator(
      "gpipe::assign(Tensor(a!) buffer, Tensor value, str name) -> ()", assign, c10::AliasAnalysisKind::FROM_SCHEMA)});
  (void)registered;
  return c10::Symbol::fromQualString("gpipe::assign");
}

}  // namespace gpipe::detail
