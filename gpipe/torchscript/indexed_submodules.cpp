#include "gpipe/torchscript/indexed_submodules.h"

#include <torch/csrc/jit/ir/constants.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpipe/torchscript/graph_walk.h"

namespace gpipe::detail {
namespace {

using torch::jit::Node;
using torch::jit::Value;
using ObjectPointer = c10::intrusive_ptr<c10::ivalue::Object>;
namespace prim = torch::jit::prim;

// The name of the submodule that the index means.
std::optional<std::string> indexed_name(const ObjectPointer& container, const c10::IValue& index) {
  if (index.isString()) return index.toStringRef();
  if (!index.isInt()) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t slot = 0; slot < container->type()->numAttributes(); ++slot) {
    if (container->getSlot(slot).isModule()) names.push_back(container->type()->getAttributeName(slot));
  }
  const auto size = static_cast<std::int64_t>(names.size());
  const std::int64_t place = index.toInt() < 0 ? index.toInt() + size : index.toInt();
  if (place < 0 || place >= size) return std::nullopt;
  return names[static_cast<std::size_t>(place)];
}

}  // namespace

void name_indexed_submodules(torch::jit::Graph& graph, const torch::jit::Module& module) {
  std::unordered_map<const Value*, ObjectPointer> objects = {{graph.inputs()[0], module._ivalue()}};
  std::vector<Node*> indexed;
  for_each_node(graph.block(), [&](Node* node) {
    if (node->kind() != prim::GetAttr && node->kind() != prim::ModuleContainerIndex) return;
    const auto object = objects.find(node->inputs()[0]);
    if (object == objects.end()) return;
    std::optional<std::string> name;
    if (node->kind() == prim::GetAttr) {
      name = node->s(torch::jit::attr::name);
    } else if (const auto index = torch::jit::toIValue(node->inputs()[1])) {
      name = indexed_name(object->second, *index);
    }
    if (!name || !object->second->type()->hasAttribute(*name)) return;
    const c10::IValue value = object->second->getAttr(*name);
    if (!value.isModule()) return;
    objects[node->output()] = value.toObject();
    if (node->kind() == prim::GetAttr) return;
    node->s_(torch::jit::attr::name, *name);
    indexed.push_back(node);
  });
  for (Node* node : indexed) {
    const torch::jit::WithInsertPoint before(node);
    Node* const named = graph.insertNode(graph.createGetAttr(node->inputs()[0], node->s(torch::jit::attr::name)));
    node->output()->replaceAllUsesWith(named->output());
    node->destroy();
  }
}

}  // namespace gpipe::detail
