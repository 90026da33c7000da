#include "gpipe/torchscript/graph_aliases.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "gpipe/torchscript/graph_walk.h"

namespace gpipe::detail {
namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

using ValueMap = std::unordered_map<const Value*, Value*>;

// The copy of a graph has the same nodes in the same order.
void map_values(Block* of, Block* to, ValueMap& map) {
  for (std::size_t index = 0; index < of->inputs().size(); ++index) map[of->inputs()[index]] = to->inputs()[index];
  auto copy = to->nodes().begin();
  for (Node* node : of->nodes()) {
    for (std::size_t index = 0; index < node->outputs().size(); ++index) {
      map[node->outputs()[index]] = copy->outputs()[index];
    }
    for (std::size_t index = 0; index < node->blocks().size(); ++index) {
      map_values(node->blocks()[index], copy->blocks()[index], map);
    }
    ++copy;
  }
}

// Operations whose result may be their first input, or a view of it, although their schemas do not say so.
bool may_return_input(const Node& node) {
  static const std::set<std::string> names = {
      "aten::dropout",        "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout",
      "aten::native_dropout", "aten::type_as",         "aten::sum_to_size",   "aten::_sum_to_size",
      "aten::_cast_Float",    "aten::_cast_Double",    "aten::_cast_Half",    "aten::_cast_Long",
      "aten::_cast_Int"};
  return names.count(node.kind().toQualString()) != 0;
}

// The same with lists: of the tensors of a list, or of views of them.
bool may_return_list(const Node& node) {
  static const std::set<std::string> names = {"aten::broadcast_tensors", "aten::meshgrid", "aten::atleast_1d",
                                              "aten::atleast_2d", "aten::atleast_3d"};
  return names.count(node.kind().toQualString()) != 0 && node.inputs()[0]->type()->kind() == c10::TypeKind::ListType;
}

// Inputs would count as one memory; what `Uninitialized` makes is its own. Notes what stands for what.
void separate_inputs(Graph& graph, ValueMap& replaced) {
  for (Value* input : graph.inputs()) {
    const torch::jit::WithInsertPoint at_start(*graph.nodes().begin());
    Node* const own = graph.insertNode(graph.create(prim::Uninitialized, 1));
    own->output()->setType(input->type());
    input->replaceAllUsesWith(own->output());
    replaced[input] = own->output();
  }
}

void show_returned_inputs(Graph& graph, ValueMap& replaced) {
  std::vector<Node*> found;
  for_each_node(graph.block(), [&](Node* node) {
    if (may_return_input(*node) || may_return_list(*node)) found.push_back(node);
  });
  for (Node* node : found) {
    Value* shown = node->inputs()[0];
    Value* const output = node->outputs()[0];
    if (may_return_input(*node)) {
      const torch::jit::WithInsertPoint behind(node->next());
      Node* const view = graph.insertNode(graph.create(c10::Symbol::fromQualString("aten::alias"), {shown}));
      shown = view->output();
      shown->setType(output->type());
    }
    output->replaceAllUsesWith(shown);
    replaced[output] = shown;
  }
}

// The running statistics of batch norms are written without a word in the schema; operations of which nothing is known
// may write to all they get.
bool is_written(const Node& node, const c10::Argument& argument) {
  const auto* const op = node.maybeOperator();
  if (op != nullptr && op->aliasAnalysisKind() == c10::AliasAnalysisKind::CONSERVATIVE) return true;
  if (argument.alias_info() != nullptr) return argument.alias_info()->isWrite();
  const std::string_view name = node.kind().toQualString();
  return argument.name().compare(0, 8, "running_") == 0 && name.find("_norm") != std::string_view::npos;
}

// Numbers, texts and the like are values that nothing changes.
bool can_be_written(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType || type.kind() == c10::TypeKind::TupleType) {
    const auto contained = type.containedTypes();
    return std::any_of(contained.begin(), contained.end(), [](const auto& inner) { return can_be_written(*inner); });
  }
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::NoneType:
    case c10::TypeKind::DeviceObjType:
      return false;
    default:
      return true;
  }
}

void add_written(const Node& node, std::vector<const Value*>& written) {
  const auto* const schema = node.maybeSchema();
  if (schema == nullptr) return;
  for (std::size_t index = 0; index < node.inputs().size() && index < schema->arguments().size(); ++index) {
    const Value* const input = node.inputs()[index];
    if (is_written(node, schema->arguments()[index]) && can_be_written(*input->type())) {
      written.push_back(input);
    }
  }
}

}  // namespace

GraphAliases::GraphAliases(const FlatGraph& flat) : copy_(flat.graph->copy()) {
  map_values(flat.graph->block(), copy_->block(), copy_of_);
  for (Node* node : flat.nodes) {
    written_.emplace_back();
    for_each_within(node, [&](Node* inner) { add_written(*inner, written_.back()); });
  }
  ValueMap replaced;
  separate_inputs(*copy_, replaced);
  show_returned_inputs(*copy_, replaced);
  for (auto& [value, copy] : copy_of_) {
    for (auto next = replaced.find(copy); next != replaced.end(); next = replaced.find(copy)) copy = next->second;
  }
  analysis_ = std::make_unique<torch::jit::AliasDb>(copy_);
}

bool GraphAliases::may_share(const Value* one, const Value* other) const {
  return one == other || analysis_->mayContainAlias(copy_of_.at(one), copy_of_.at(other));
}

bool GraphAliases::may_share_any(const Value* one, const std::vector<const Value*>& others) const {
  std::vector<Value*> copies;
  copies.reserve(others.size());
  for (const Value* other : others) copies.push_back(copy_of_.at(other));
  return analysis_->mayContainAlias(copy_of_.at(one), copies);
}

bool GraphAliases::may_be_same(const Value* one, const Value* other) const {
  return one == other || analysis_->mayAlias(copy_of_.at(one), copy_of_.at(other));
}

}  // namespace gpipe::detail
