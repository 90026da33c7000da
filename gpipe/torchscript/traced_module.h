// Traced module: a module in C++ becomes a TorchScript module, by recording what it does with a sample.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "gpipe/model/layer.h"

namespace gpipe::detail {

// A module with the parameters, buffers and names of `module`, whose tensors it shares, and a forward of the operations
// that `module` runs on the sample. Its inputs are called x, or x0, x1 and so on. Buffers and the default generator are
// afterwards as before.
//
// Throws InvalidArgument, with a remedy, if an operation cannot be recorded, or if what was recorded gives other
// results than the module: on the sample, or on one of another number of rows. What the module throws passes through.
torch::jit::Module trace_module(const Layer& module, const Tensors& sample);

}  // namespace gpipe::detail
