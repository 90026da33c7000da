// Indexed submodules: calls of a submodule that is taken out of a list by its number become calls of that submodule.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

namespace gpipe::detail {

// self.layers[2] becomes self.layers."2", and self.heads["a"] likewise, where the index is a constant of the graph. Its
// calls can then be inlined.
void name_indexed_submodules(torch::jit::Graph& graph, const torch::jit::Module& module);

}  // namespace gpipe::detail
