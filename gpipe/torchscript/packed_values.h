// Packed values: what goes from layer to layer and is no tensor, written down as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Numbers, texts, devices, none, tensors, and lists, tuples and dictionaries of them.
bool can_be_packed(const c10::Type& type);

// The skeleton, int64 on the CPU, that says what the values are, and behind it the tensors in them. A tensor that
// occurs several times is there once. REQUIRES: values of types that can be packed.
Tensors pack(const std::vector<c10::IValue>& values);

// The values that were packed, with containers of their own. `packed` holds the skeleton at `first`, and the tensors
// behind it. A device other than the CPU becomes `device`: that of the layers which use it. Throws InvalidArgument if
// the tensors are not what values of these types were packed into.
std::vector<c10::IValue> unpack(const Tensors& packed, std::size_t first, const std::vector<c10::TypePtr>& types,
                                const at::Device& device);

}  // namespace gpipe::detail
