#include "gpipe/torchscript/unused_draws.h"

#include <torch/csrc/jit/runtime/custom_operator.h>

#include <string_view>
#include <vector>

#include "gpipe/torchscript/graph_walk.h"

namespace gpipe::detail {
namespace {

using torch::jit::Node;

c10::Symbol keeper_symbol() {
  static const auto* const registered = new torch::jit::RegisterOperators({torch::jit::Operator(
      "gpipe::keep_draw(Any value) -> ()", [](torch::jit::Stack& stack) { stack.pop_back(); },
      c10::AliasAnalysisKind::CONSERVATIVE)});
  (void)registered;
  return c10::Symbol::fromQualString("gpipe::keep_draw");
}

bool draws(const Node& node) {
  if (node.outputs().empty() || node.maybeSchema() == nullptr) return false;
  const std::string_view name = node.kind().toQualString();
  if (node.isNondeterministic() || name.find("dropout") != std::string_view::npos) return true;
  return node.schema().argumentIndexWithName("generator").has_value();
}

}  // namespace

void keep_draws(torch::jit::Graph& graph) {
  std::vector<Node*> found;
  for_each_node(graph.block(), [&](Node* node) {
    if (draws(*node)) found.push_back(node);
  });
  for (Node* node : found) graph.create(keeper_symbol(), {node->outputs()[0]}, 0)->insertAfter(node);
}

void let_go_of_draws(torch::jit::Graph& graph) {
  std::vector<Node*> keepers;
  for_each_node(graph.block(), [&](Node* node) {
    if (node->kind() == keeper_symbol()) keepers.push_back(node);
  });
  for (Node* keeper : keepers) keeper->destroy();
}

}  // namespace gpipe::detail
