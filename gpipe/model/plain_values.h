// Plain values: those of a tensor that stand one after another in the memory of the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>

namespace gpipe::detail {

// Note [Without operations]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// An operation of libtorch costs microseconds, whatever the size of its tensors: it is dispatched, checked, and
// allocates. What a step does between its actions is about a few numbers a tensor, of hundreds of tensors. So where
// values are plain it is done by loops over them, with the same bits; elsewhere by operations.

inline bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Null if they are not plain or of another type.
template <typename Value>
Value* plain_values(const at::Tensor& tensor) {
  if (!is_plain(tensor) || tensor.scalar_type() != c10::CppTypeToScalarType<std::remove_const_t<Value>>::value) {
    return nullptr;
  }
  return tensor.data_ptr<std::remove_const_t<Value>>();
}

}  // namespace gpipe::detail
