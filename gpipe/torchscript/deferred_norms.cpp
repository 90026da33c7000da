#include "gpipe/torchscript/deferred_norms.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/runtime/custom_operator.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/graph_walk.h"
#include "gpipe/torchscript/script_batch_norm.h"

namespace gpipe::detail {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace aten = torch::jit::aten;
namespace prim = torch::jit::prim;

constexpr std::size_t kScopeInput = 6;

void run_batch_norm(torch::jit::Stack& stack) {
  ScriptBatchNorm& norm = BatchNormScope::find(torch::jit::pop(stack).toStringRef());
  torch::jit::drop(stack, kScopeInput - 1);  // the slots, which the module has
  const at::Tensor input = torch::jit::pop(stack).toTensor();
  stack.emplace_back(norm.forward(input));
}

c10::Symbol symbol() {
  static const auto* const registered = new torch::jit::RegisterOperators({torch::jit::Operator(
      "gpipe::deferred_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, "
      "Tensor(b!) running_var, Tensor(c!)? num_batches_tracked, str scope) -> Tensor",
      run_batch_norm, c10::AliasAnalysisKind::FROM_SCHEMA)});
  (void)registered;
  return c10::Symbol::fromQualString("gpipe::deferred_batch_norm");
}

class NormPass {
 public:
  explicit NormPass(FlatGraph& flat) : flat_(flat) {
    const std::size_t num_others = flat.graph->inputs().size() - flat.slots.size();
    for (std::size_t slot = 0; slot < flat.slots.size(); ++slot) {
      slot_of_[flat.graph->inputs()[num_others + slot]] = static_cast<int>(slot);
    }
  }

  void run() {
    std::vector<Node*> norms;
    for_each_node(flat_.graph->block(), [&](Node* node) {
      if (node->kind() == aten::batch_norm) norms.push_back(node);
    });
    for (Node* node : norms) {
      if (find_slot(node->namedInput("running_mean")) != nullptr) defer(*node);
    }
    take_counting_away();
  }

 private:
  // The slot that the value is, if it is not nothing: it may have gone through branches.
  Value* find_slot(Value* value) const {
    if (slot_of_.count(value) != 0) return value;
    Node* const node = value->node();
    if (node->kind() == prim::unchecked_cast || node->kind() == aten::_unwrap_optional) return find_slot(node->input());
    if (node->kind() != prim::If) return nullptr;
    for (torch::jit::Block* block : node->blocks()) {
      Value* const slot = find_slot(block->outputs()[value->offset()]);
      if (slot != nullptr) return slot;
    }
    return nullptr;
  }

  // The number that the value is in some branch; nothing if it is computed.
  static std::optional<double> find_number(const Value* value) {
    const auto constant = torch::jit::toIValue(value);
    if (constant && constant->isDouble()) return constant->toDouble();
    const Node* const node = value->node();
    if (node->kind() != prim::If) return std::nullopt;
    std::optional<double> number;
    for (const torch::jit::Block* block : node->blocks()) {
      number = find_number(block->outputs()[value->offset()]);
      if (!number) return std::nullopt;
    }
    return number;
  }

  std::optional<AttributeSlot> attribute(Value* slot) const {
    if (slot == nullptr) return std::nullopt;
    return flat_.slots[slot_of_.at(slot)];
  }

  Value* slot_named(const std::string& name) const {
    for (const auto& [value, slot] : slot_of_) {
      if (flat_.slots[slot].name() == name) return const_cast<Value*>(value);  // NOLINT(*-const-cast) of our graph
    }
    return nullptr;
  }

  void defer(Node& node) {
    Value* const mean = find_slot(node.namedInput("running_mean"));
    Value* const variance = find_slot(node.namedInput("running_var"));
    if (variance == nullptr) return;
    BatchNormSlots norm;
    norm.running_mean = *attribute(mean);
    norm.running_var = *attribute(variance);
    norm.scope = norm.running_mean.scope;
    if (norm.scope.empty()) {
      throw InvalidArgument(
          "the module is a batch norm itself, which cannot be deferred; put it into a module, or leave "
          "deferred_batch_norm out");
    }
    Value* const weight = find_slot(node.namedInput("weight"));
    Value* const bias = find_slot(node.namedInput("bias"));
    Value* const count = slot_named(norm.scope + ".num_batches_tracked");
    norm.weight = attribute(weight);
    norm.bias = attribute(bias);
    norm.num_batches_tracked = attribute(count);
    norm.momentum = find_number(node.namedInput("momentum"));
    norm.eps = torch::jit::toIValue(node.namedInput("eps")).value_or(1e-5).toDouble();
    const torch::jit::WithInsertPoint before(&node);
    Value* const none = flat_.graph->insertConstant(c10::IValue());
    const auto or_none = [&](Value* value) { return value != nullptr ? value : none; };
    Node* const made = flat_.graph->insertNode(
        flat_.graph->create(symbol(), {node.namedInput("input"), or_none(weight), or_none(bias), mean, variance,
                                       or_none(count), flat_.graph->insertConstant(norm.scope)}));
    made->copyMetadata(&node);
    made->output()->setType(node.output()->type());
    node.output()->replaceAllUsesWith(made->output());
    node.destroy();
    if (count != nullptr) counted_.push_back(count);
    const std::string scope = norm.scope;
    flat_.deferred_norms.emplace(scope, std::move(norm));
  }

  // num_batches_tracked.add_(1), which the deferred batch norm does.
  void take_counting_away() {
    std::vector<Node*> counting;
    for (const Value* count : counted_) {
      for (const torch::jit::Use& use : count->uses()) {
        if (use.user->kind() == aten::add_ && use.offset == 0) counting.push_back(use.user);
      }
    }
    for (Node* node : counting) {
      node->output()->replaceAllUsesWith(node->inputs()[0]);
      node->destroy();
    }
  }

  FlatGraph& flat_;
  std::unordered_map<const Value*, int> slot_of_;
  std::vector<Value*> counted_;
};

}  // namespace

void defer_batch_norms(FlatGraph& flat) { NormPass(flat).run(); }

std::optional<std::string> deferred_norm_of(const Node& node) {
  if (node.kind() != symbol()) return std::nullopt;
  return torch::jit::toIValue(node.inputs()[kScopeInput])->toStringRef();
}

}  // namespace gpipe::detail
