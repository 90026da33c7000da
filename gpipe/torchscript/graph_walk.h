// Graph walk: the nodes of a TorchScript graph, those in the blocks of others too.
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace gpipe::detail {

// Calls `visit` for `node` and for every node in its blocks, at any depth, in program order. `visit` may change a
// node's inputs, and may not destroy nodes.
void for_each_within(torch::jit::Node* node, const std::function<void(torch::jit::Node*)>& visit);
void for_each_node(torch::jit::Block* block, const std::function<void(torch::jit::Node*)>& visit);

// The values from outside that the node uses, also within its blocks, each once, in the order of their first use.
std::vector<torch::jit::Value*> values_used_by(torch::jit::Node* node);

// "aten::add (line 12 of forward)" as far as it is known where the source of the node was.
std::string describe_node(const torch::jit::Node& node);

}  // namespace gpipe::detail
