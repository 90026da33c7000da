#include "gpipe/torchscript/module_attributes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>

#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/assigned_attribute.h"
#include "gpipe/torchscript/graph_walk.h"

namespace gpipe::detail {
namespace {

using c10::IValue;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using ObjectPointer = c10::intrusive_ptr<c10::ivalue::Object>;
namespace attr = torch::jit::attr;
namespace prim = torch::jit::prim;

// The same values in the same memory: two attributes that hold them are one weight.
using TensorKey = std::tuple<const void*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, int>;

TensorKey key_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0) return {tensor.unsafeGetTensorImpl(), 0, {}, {}, 0};
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.sizes().vec(),
          tensor.strides().vec(), static_cast<int>(tensor.scalar_type())};
}

void find_paths(const ObjectPointer& object, const std::string& path,
                std::map<const c10::ivalue::Object*, std::string>& paths) {
  if (!paths.emplace(object.get(), path).second) return;
  for (std::size_t slot = 0; slot < object->type()->numAttributes(); ++slot) {
    const IValue value = object->getSlot(slot);
    const std::string& name = object->type()->getAttributeName(slot);
    if (value.isModule()) find_paths(value.toObject(), path.empty() ? name : path + "." + name, paths);
  }
}

void add_weights(const ObjectPointer& object, const std::string& path, std::set<const c10::ivalue::Object*>& seen,
                 std::set<TensorKey>& known, std::vector<AttributeSlot>& weights) {
  if (!seen.insert(object.get()).second) return;
  const auto type = object->type();
  for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const IValue value = object->getSlot(slot);
    if (!value.isTensor() || !value.toTensor().defined() || !(type->is_parameter(slot) || type->is_buffer(slot)))
      continue;
    if (!known.insert(key_of(value.toTensor())).second) continue;
    const auto kind = type->is_parameter(slot) ? AttributeSlot::Kind::kParameter : AttributeSlot::Kind::kBuffer;
    weights.push_back({kind, path, type->getAttributeName(slot), value.toTensor()});
  }
  for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const IValue value = object->getSlot(slot);
    if (!value.isModule()) continue;
    const std::string& name = type->getAttributeName(slot);
    add_weights(value.toObject(), path.empty() ? name : path + "." + name, seen, known, weights);
  }
}

// One graph's attributes, on their way to slots.
class AttributePass {
 public:
  AttributePass(std::shared_ptr<Graph> graph, const torch::jit::Module& module,
                const std::vector<AttributeSlot>& weights)
      : graph_(std::move(graph)), paths_(paths_of_submodules(module)) {
    objects_[graph_->inputs()[0]] = module._ivalue();
    for (const AttributeSlot& weight : weights) weights_[key_of(weight.tensor)] = &weight;
  }

  std::vector<AttributeSlot> run() {
    find_objects();
    std::vector<Node*> nodes;
    for_each_node(graph_->block(), [&](Node* node) {
      if (node->kind() == prim::GetAttr || node->kind() == prim::SetAttr) nodes.push_back(node);
    });
    for (Node* node : nodes) {
      const auto object = objects_.find(node->inputs()[0]);
      if (object == objects_.end()) {
        check_is_no_module(*node, *node->inputs()[0]);
        continue;
      }
      if (node->kind() == prim::SetAttr) {
        assign(*node, object->second);
      } else if (objects_.count(node->output()) == 0) {
        node->output()->replaceAllUsesWith(read(*node, object->second));
      }
      done_.push_back(node);
    }
    for (auto node = done_.rbegin(); node != done_.rend(); ++node) destroy(*node);
    Value* const self = graph_->inputs()[0];
    if (self->hasUses()) refuse_use(*self->uses().front().user);
    graph_->eraseInput(0);
    return std::move(slots_);
  }

 private:
  using Attribute = std::pair<const c10::ivalue::Object*, std::string>;

  // Which values are submodules, and which attributes are assigned somewhere.
  void find_objects() {
    for_each_node(graph_->block(), [this](Node* node) {
      if (node->kind() != prim::GetAttr && node->kind() != prim::SetAttr) return;
      const auto found = objects_.find(node->inputs()[0]);
      if (found == objects_.end()) return;
      const ObjectPointer object = found->second;
      const std::string& name = node->s(attr::name);
      if (node->kind() == prim::SetAttr) {
        assigned_.insert({object.get(), name});
        return;
      }
      const IValue value = object->getAttr(name);
      if (value.isModule()) objects_[node->output()] = value.toObject();
    });
  }

  std::string name_of(const ObjectPointer& object, const std::string& key) const {
    const std::string& path = paths_.at(object.get());
    return path.empty() ? key : path + "." + key;
  }

  static void check_is_no_module(const Node& node, const Value& value) {
    if (value.type()->is_module() || value.type()->kind() == c10::TypeKind::InterfaceType) refuse_use(node);
  }

  [[noreturn]] static void refuse_use(const Node& node) {
    throw InvalidArgument(fmt::format(
        "{} uses a submodule that is chosen at run time or handed on as a value; call each submodule by its "
        "own name, self.a(x)",
        describe_node(node)));
  }

  void destroy(Node* node) const {
    for (const Value* output : node->outputs()) {
      if (output->hasUses()) refuse_use(*output->uses().front().user);
    }
    node->destroy();
  }

  Value* read(Node& node, const ObjectPointer& object) {
    const std::string& key = node.s(attr::name);
    const Attribute attribute = {object.get(), key};
    const auto latest = latest_.find(attribute);
    if (latest != latest_.end()) return latest->second;
    if (assigned_in_block_.count(attribute) != 0) {
      throw InvalidArgument(fmt::format(
          "\"{}\" is assigned within an if or a loop and read afterwards; change it in place, self.{}.copy_(value), or "
          "assign it outside",
          name_of(object, key), key));
    }
    if (object->getAttr(key).isGenericDict()) return read_dictionary(node, object, key);
    if (assigned_.count(attribute) == 0) return value_of(object, key);
    check_is_buffer(object, key);
    Value* const value = value_of(object, key);
    // What was read before an assignment stays what it was.
    const torch::jit::WithInsertPoint before(&node);
    return graph_->insert(c10::Symbol::fromQualString("aten::clone"), {value});
  }

  // A dictionary may be a cache: each forward begins with a copy of what it was.
  Value* read_dictionary(Node& node, const ObjectPointer& object, const std::string& key) {
    Value*& known = values_[{object.get(), key}];
    if (known != nullptr) return known;
    const torch::jit::WithInsertPoint before(at_top_level(&node));
    const AttributeSlot slot{AttributeSlot::Kind::kConstant, paths_.at(object.get()), key, {}};
    std::vector<Value*> keys;
    std::vector<Value*> values;
    for (const auto& item : object->getAttr(key).toGenericDict()) {
      keys.push_back(insert(item.key(), slot));
      values.push_back(insert(item.value(), slot));
    }
    const auto type = node.output()->type()->expect<c10::DictType>();
    return known =
               graph_->insertNode(graph_->createDict(type->getKeyType(), type->getValueType(), keys, values))->output();
  }

  // The node of the top level that the node is or is within.
  Node* at_top_level(Node* node) const {
    while (node->owningBlock() != graph_->block()) node = node->owningBlock()->owningNode();
    return node;
  }

  Value* value_of(const ObjectPointer& object, const std::string& key) {
    Value*& known = values_[{object.get(), key}];
    if (known != nullptr) return known;
    const torch::jit::WithInsertPoint at_start(*graph_->nodes().begin());
    const auto index = object->type()->getAttributeSlot(key);
    const IValue value = object->getSlot(index);
    if (key == "training" && value.isBool()) {
      Value* const input = graph_->addInput();
      input->setType(c10::BoolType::get());
      slots_.push_back({AttributeSlot::Kind::kTraining, paths_.at(object.get()), key, {}});
      return known = input;
    }
    return known = insert(value, {AttributeSlot::Kind::kConstant, paths_.at(object.get()), key, {}});
  }

  // Inserts what makes the value, at the insert point.
  Value* insert(const IValue& value, const AttributeSlot& slot) {
    if (value.isTensor() && value.toTensor().defined()) return slot_for(value.toTensor(), slot);
    if (value.isTuple()) {
      std::vector<Value*> elements;
      for (const IValue& element : value.toTupleRef().elements()) elements.push_back(insert(element, slot));
      const auto type = value.type()->cast<c10::TupleType>();
      Node* const made = graph_->createTuple(elements, type->schema() ? type : nullptr);
      return graph_->insertNode(made)->output();
    }
    if (value.isTensorList()) {
      std::vector<Value*> elements;
      for (const at::Tensor& element : value.toTensorVector()) elements.push_back(slot_for(element, slot));
      return graph_->insertNode(graph_->createList(c10::TensorType::get(), elements))->output();
    }
    const auto constant = torch::jit::tryInsertConstant(*graph_, value);
    if (constant) return *constant;
    throw InvalidArgument(fmt::format(
        "\"{}\" is {}, which cannot be given to layers; keep tensors in parameters, buffers, lists or tuples, and "
        "numbers or texts beside them",
        slot.name(), value.type()->repr_str()));
  }

  Value* slot_for(const at::Tensor& tensor, AttributeSlot slot) {
    Value*& known = slot_of_tensor_[key_of(tensor)];
    if (known != nullptr) return known;
    known = graph_->addInput();
    known->setType(c10::TensorType::get());
    slot.tensor = tensor;
    const auto weight = weights_.find(key_of(tensor));
    slots_.push_back(weight != weights_.end() ? *weight->second : std::move(slot));
    return known;
  }

  void assign(Node& node, const ObjectPointer& object) {
    const std::string& key = node.s(attr::name);
    const std::string name = name_of(object, key);
    check_is_buffer(object, key);
    Value* const slot = value_of(object, key);
    Value* const value = node.inputs()[1];
    const torch::jit::WithInsertPoint before(&node);
    graph_->insertNode(graph_->create(assignment_symbol(), {slot, value, graph_->insertConstant(name)}, 0));
    if (node.owningBlock() == graph_->block()) {
      latest_[{object.get(), key}] = value;
      assigned_in_block_.erase({object.get(), key});
    } else {
      latest_.erase({object.get(), key});
      assigned_in_block_.insert({object.get(), key});
      if (is_in_loop(node)) {
        throw InvalidArgument(
            fmt::format("\"{}\" is assigned within a loop; assign it once, behind the loop, or change it in place, "
                        "self.{}.copy_(value)",
                        name, key));
      }
    }
  }

  void check_is_buffer(const ObjectPointer& object, const std::string& key) const {
    const std::string name = name_of(object, key);
    const auto index = object->type()->getAttributeSlot(key);
    if (!object->getSlot(index).isTensor() || !object->type()->is_buffer(index)) {
      throw InvalidArgument(fmt::format(
          "\"{}\" is assigned in forward, and is no buffer; keep what changes from batch to batch in a registered "
          "buffer, and change it in place, self.{}.copy_(value)",
          name, key));
    }
  }

  static bool is_in_loop(const Node& node) {
    for (const Node* outer = node.owningBlock()->owningNode(); outer != nullptr && outer->owningBlock() != nullptr;
         outer = outer->owningBlock()->owningNode()) {
      if (outer->kind() == prim::Loop) return true;
    }
    return false;
  }

  const std::shared_ptr<Graph> graph_;
  const std::map<const c10::ivalue::Object*, std::string> paths_;
  std::unordered_map<const Value*, ObjectPointer> objects_;
  std::set<Attribute> assigned_;
  std::set<Attribute> assigned_in_block_;
  std::map<Attribute, Value*> values_;
  std::map<Attribute, Value*> latest_;  // what was assigned at the top level
  std::map<TensorKey, const AttributeSlot*> weights_;
  std::map<TensorKey, Value*> slot_of_tensor_;
  std::vector<AttributeSlot> slots_;
  std::vector<Node*> done_;
};

}  // namespace

std::map<const c10::ivalue::Object*, std::string> paths_of_submodules(const torch::jit::Module& module) {
  std::map<const c10::ivalue::Object*, std::string> paths;
  find_paths(module._ivalue(), "", paths);
  return paths;
}

std::vector<AttributeSlot> weights_of(const torch::jit::Module& module) {
  std::vector<AttributeSlot> weights;
  std::set<const c10::ivalue::Object*> seen;
  std::set<TensorKey> known;
  add_weights(module._ivalue(), "", seen, known, weights);
  return weights;
}

std::vector<AttributeSlot> slots_for_attributes(const std::shared_ptr<Graph>& graph, const torch::jit::Module& module,
                                                const std::vector<AttributeSlot>& weights) {
  return AttributePass(graph, module, weights).run();
}

void slots_for_constants(const std::shared_ptr<Graph>& graph, std::vector<AttributeSlot>& slots) {
  std::vector<Node*> constants;
  for_each_node(graph->block(), [&](Node* node) {
    if (node->kind() == prim::Constant && node->hasAttribute(attr::value) &&
        node->kindOf(attr::value) == torch::jit::AttributeKind::t && node->t(attr::value).dim() > 0) {
      constants.push_back(node);
    }
  });
  for (Node* node : constants) {
    AttributeSlot slot{AttributeSlot::Kind::kConstant, "", fmt::format("constant{}", slots.size()),
                       node->t(attr::value)};
    Value* const input = graph->addInput();
    input->setType(c10::TensorType::get());
    slots.push_back(std::move(slot));
    node->output()->replaceAllUsesWith(input);
    node->destroy();
  }
}

}  // namespace gpipe::detail
