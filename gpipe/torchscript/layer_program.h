// Layer program: the operations of one layer of a flat graph, and what it takes and gives.
#pragma once

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/torchscript/flat_graph.h"
#include "gpipe/torchscript/graph_aliases.h"

namespace gpipe::detail {

// Note [What goes from layer to layer]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A value that the next layer uses goes there directly. A tensor that is needed later is stashed at the end of the last
// layer that had it, and popped by the next one that uses it, which stashes it again if another one needs it still. So
// autograd adds up the gradients of its uses in the order of the whole module: later uses first.
//
// Values that are no tensors are packed (packed_values.h) and go from layer to layer, and so do tensors of which two
// may be the same one, for the same reason: what is one tensor stays one.
//
// A parameter that several layers use, or a buffer that nothing changes, belongs to the first of them, and goes on from
// there like any other tensor. A parameter of many bytes does not: then each of the layers has a tensor for it, which
// are to be tied (see Note [Tied weights]).
struct LayerProgram {
  std::string name;
  // Takes the tensors that come directly, the values that come packed, the tensors that are popped, and the slots.
  // Gives the same without slots, or, in the last layer, the result of the module.
  torch::jit::Code code;
  std::shared_ptr<torch::jit::CompilationUnit> classes;  // see FlatGraph
  std::size_t num_direct_in = 0;
  std::vector<std::string> inputs;  // in the first layer: the names of what comes directly
  std::vector<c10::TypePtr> packed_in;
  std::vector<std::string> popped;  // names of skips
  std::size_t num_direct_out = 0;
  std::size_t num_packed_out = 0;
  std::vector<std::string> stashed;
  bool is_last = false;
  std::optional<bool> recorded_mode;  // see FlatGraph
  std::vector<AttributeSlot> slots;
  std::vector<BatchNormSlots> deferred_norms;
  std::vector<AttributeSlot> unused;  // parameters and buffers that no operation reads, which belong to this layer
};

// One layer between each two of the cuts, which are the first nodes of all layers but the first, in ascending order.
// Shared parameters of more than `most_shared_bytes` are to be tied. REQUIRES: the cuts are allowed.
std::vector<LayerProgram> make_programs(const FlatGraph& flat, const GraphAliases& aliases,
                                        const std::vector<int>& cuts, std::int64_t most_shared_bytes);

}  // namespace gpipe::detail
