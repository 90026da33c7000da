#include "gpipe/torchscript/graph_walk.h"

#include <fmt/format.h>

namespace gpipe::detail {
namespace {

using torch::jit::Block;
using torch::jit::Node;
using torch::jit::Value;

struct UsedValues {
  std::vector<Value*> used;
  std::unordered_set<const Value*> seen;  // used already, or made within the node

  void use(Value* value) {
    if (seen.insert(value).second) used.push_back(value);
  }
  void walk(Node* node) {
    for (Value* input : node->inputs()) use(input);
    for (Block* block : node->blocks()) {
      seen.insert(block->inputs().begin(), block->inputs().end());
      for (Node* inner : block->nodes()) {
        walk(inner);
        seen.insert(inner->outputs().begin(), inner->outputs().end());
      }
      for (Value* output : block->outputs()) use(output);
    }
  }
};

}  // namespace

void for_each_within(Node* node, const std::function<void(Node*)>& visit) {
  visit(node);
  for (Block* block : node->blocks()) for_each_node(block, visit);
}

void for_each_node(Block* block, const std::function<void(Node*)>& visit) {
  for (Node* node : block->nodes()) for_each_within(node, visit);
}

std::vector<Value*> values_used_by(Node* node) {
  UsedValues values;
  values.walk(node);
  return std::move(values.used);
}

std::string describe_node(const Node& node) {
  std::string text = node.kind().toQualString();
  const auto place = node.sourceRange().file_line_col();
  if (!place) return text;
  const auto& [file, line, column] = *place;
  return fmt::format("{} ({}, line {})", text, file, line);
}

}  // namespace gpipe::detail
