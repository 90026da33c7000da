// Module attributes: replaces what a graph reads of its module by slots, which become inputs of the graph.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/torchscript/flat_graph.h"

namespace gpipe::detail {

// The paths of the submodules, by object: the first that leads to it. "" is the module itself.
std::map<const c10::ivalue::Object*, std::string> paths_of_submodules(const torch::jit::Module& module);

// The module's parameters and buffers, in its order. A tensor that has several names is there once, by the first.
std::vector<AttributeSlot> weights_of(const torch::jit::Module& module);

// The graph's first input, the module, is taken away; an input for each slot is added at the end. What is no tensor and
// not `training` becomes a constant. A tensor that is a parameter or buffer has its name among `weights`. Throws as
// `flatten` does.
std::vector<AttributeSlot> slots_for_attributes(const std::shared_ptr<torch::jit::Graph>& graph,
                                                const torch::jit::Module& module,
                                                const std::vector<AttributeSlot>& weights);

// Tensors that are constants of the graph become slots as well, and are appended to `slots`: they can then be moved to
// another device. Those without dimensions stay: they fit every device, and operations read them as numbers.
void slots_for_constants(const std::shared_ptr<torch::jit::Graph>& graph, std::vector<AttributeSlot>& slots);

}  // namespace gpipe::detail
