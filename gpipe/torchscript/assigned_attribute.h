// Assigned attribute: the operation that stands where a module's forward assigns to one of its buffers.
#pragma once

#include <ATen/core/symbol.h>

namespace gpipe::detail {

// gpipe::assign(Tensor(a!) buffer, Tensor value, str name) -> (): the buffer takes the values, in its own memory,
// without their history. Throws InvalidArgument if shape or type differ. Known to the interpreter from the first call
// on.
c10::Symbol assignment_symbol();

}  // namespace gpipe::detail
