// Kernels of the late device: those of libtorch for the CPU, run later.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpipe::test {

// The tensor's elements as what runs on its device finds them, for its streams only. Keeps no memory alive.
at::Tensor on_late_device(const at::Tensor& tensor);

}  // namespace gpipe::test
