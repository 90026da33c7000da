#include "gpipe/torchscript/flat_graph.h"

#include <fmt/format.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inline_fork_wait.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/peephole_list_idioms.h>
#include <torch/csrc/jit/passes/remove_mutation.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/deferred_norms.h"
#include "gpipe/torchscript/graph_walk.h"
#include "gpipe/torchscript/indexed_submodules.h"
#include "gpipe/torchscript/model_inputs.h"
#include "gpipe/torchscript/module_attributes.h"
#include "gpipe/torchscript/unused_draws.h"

namespace gpipe::detail {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

bool is_call(const Node& node) { return node.kind() == prim::CallMethod || node.kind() == prim::CallFunction; }

// One pass inlines one level only, where the executor does not optimize.
void inline_calls(Graph& graph, const torch::jit::Module& module) {
  constexpr int kMostLevels = 256;
  for (int level = 0; level < kMostLevels; ++level) {
    torch::jit::Inline(graph);
    name_indexed_submodules(graph, module);
    bool any_left = false;
    for_each_node(graph.block(),
                  [&](Node* node) { any_left |= is_call(*node) && torch::jit::tryToGraphFunction(node) != nullptr; });
    if (!any_left) return;
  }
  throw InvalidArgument(
      fmt::format("the module's calls are nested more than {} deep; a function that calls itself cannot be cut into "
                  "layers",
                  kMostLevels));
}

void clean(std::shared_ptr<Graph>& graph) {
  torch::jit::InlineForkWait(graph);
  torch::jit::LowerSimpleTuples(graph);
  torch::jit::ConstantPropagationImmutableTypes(graph);
  torch::jit::RemoveListMutation(graph);
  torch::jit::PeepholeOptimizeListIdioms(graph);
  torch::jit::ConstantPropagationImmutableTypes(graph);
  torch::jit::runRequiredPasses(graph);
  torch::jit::EliminateDeadCode(graph);
  let_go_of_draws(*graph);
}

// A list among the module's attributes is a constant by now.
void check_writes(const Node& node) {
  const auto* const schema = node.maybeSchema();
  if (schema == nullptr || !schema->is_mutable()) return;
  for (std::size_t index = 0; index < node.inputs().size() && index < schema->arguments().size(); ++index) {
    const auto* const alias = schema->arguments()[index].alias_info();
    if (alias == nullptr || !alias->isWrite() || node.inputs()[index]->node()->kind() != prim::Constant) continue;
    throw InvalidArgument(fmt::format(
        "{} changes a list that is an attribute of the module; keep what changes from batch to batch in a registered "
        "buffer",
        describe_node(node)));
  }
}

void check_operations(Graph& graph) {
  for_each_node(graph.block(), [](Node* node) {
    if (is_call(*node)) {
      throw InvalidArgument(
          fmt::format("{} calls what is known at run time only; call each submodule by its own name, self.a(x)",
                      describe_node(*node)));
    }
    if (node->kind() == prim::PythonOp || node->kind() == prim::fork || node->kind() == prim::rpc_async ||
        node->kind() == prim::rpc_sync || node->kind() == prim::rpc_remote) {
      throw InvalidArgument(
          fmt::format("{} leaves the module's own operations, and cannot be in a layer; export the module without it",
                      describe_node(*node)));
    }
  });
}

void check_result(const c10::Type& type, const std::string& place) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NoneType:
      return;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::ListType:
      return check_result(*type.containedTypes()[0], place + (type.kind() == c10::TypeKind::ListType ? "[]" : ""));
    case c10::TypeKind::DictType:
      return check_result(*type.containedTypes()[1], place + "[]");
    case c10::TypeKind::TupleType:
      for (std::size_t index = 0; index < type.containedTypes().size(); ++index) {
        check_result(*type.containedTypes()[index], fmt::format("{}.{}", place, index));
      }
      return;
    default:
      throw InvalidArgument(
          fmt::format("{} of the module is {}, and only tensors can leave the last layer; return it as a tensor, or "
                      "write a module around it that returns tensors only",
                      place, type.repr_str()));
  }
}

std::map<std::string, bool> modes_of(const torch::jit::Module& module) {
  std::map<std::string, bool> modes;
  const auto paths = paths_of_submodules(module);
  const auto note = [&](const torch::jit::Module& submodule) {
    modes[paths.at(submodule._ivalue().get())] = submodule.is_training();
  };
  note(module);
  for (const torch::jit::Module& submodule : module.modules()) note(submodule);
  return modes;
}

// Fills nodes, values and slot_values.
void list_values(FlatGraph& flat) {
  for (Node* node : flat.graph->nodes()) {
    if (node->kind() != prim::Constant) flat.nodes.push_back(node);
  }
  std::unordered_map<const Value*, FlatValue*> known;
  const std::size_t num_inputs = flat.inputs.size();
  flat.values.reserve(num_inputs + 4 * flat.nodes.size());
  for (std::size_t index = 0; index < flat.graph->inputs().size(); ++index) {
    auto& list = index < num_inputs ? flat.values : flat.slot_values;
    list.push_back({flat.graph->inputs()[index], -1, {}});
  }
  for (int index = 0; index < flat.num_nodes(); ++index) {
    for (Value* output : flat.nodes[index]->outputs()) flat.values.push_back({output, index, {}});
  }
  for (FlatValue& value : flat.values) known[value.value] = &value;
  for (FlatValue& value : flat.slot_values) known[value.value] = &value;
  const auto use = [&](const Value* value, int index) {
    const auto found = known.find(value);
    if (found != known.end()) found->second->used_by.push_back(index);
  };
  for (int index = 0; index < flat.num_nodes(); ++index) {
    for (const Value* value : values_used_by(flat.nodes[index])) use(value, index);
  }
  for (const Value* output : flat.graph->outputs()) use(output, flat.num_nodes());
}

}  // namespace

FlatGraph flatten(const torch::jit::Module& module, const std::vector<std::string>& inputs, bool deferred_batch_norm) {
  const auto forward = module.find_method("forward");
  if (!forward) throw InvalidArgument("the module has no forward; export a module that can be called");
  FlatGraph flat;
  flat.graph = forward->graph()->copy();
  inline_calls(*flat.graph, module);
  keep_draws(*flat.graph);
  torch::jit::EliminateDeadCode(flat.graph);  // also of uses of submodules that are left over from inlining
  flat.inputs = take_tensors(flat.graph, forward->function().getSchema(), inputs);
  flat.weights = weights_of(module);
  flat.slots = slots_for_attributes(flat.graph, module, flat.weights);
  for_each_node(flat.graph->block(), [](Node* node) { check_writes(*node); });
  clean(flat.graph);
  if (deferred_batch_norm) {
    defer_batch_norms(flat);
    torch::jit::EliminateDeadCode(flat.graph);
  }
  check_operations(*flat.graph);
  slots_for_constants(flat.graph, flat.slots);
  check_result(*flat.graph->outputs()[0]->type(), "the result");
  flat.graph->lint();
  flat.training = modes_of(module);
  flat.classes = module._ivalue()->compilation_unit();
  list_values(flat);
  return flat;
}

}  // namespace gpipe::detail
