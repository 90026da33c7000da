#include "gpipe/torchscript/layer_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/torchscript/deferred_norms.h"
#include "gpipe/torchscript/graph_walk.h"
#include "gpipe/torchscript/operation_weights.h"

namespace gpipe::detail {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

// A value on its way through the layers.
struct Traveller {
  Value* value = nullptr;
  std::vector<int> layers;  // that make or use it, in ascending order
  bool is_packed = false;
};

// What one layer takes and gives, as values of the flat graph.
struct LayerValues {
  std::vector<Value*> direct_in;
  std::vector<Value*> packed_in;
  std::vector<Value*> popped;
  std::vector<Value*> direct_out;
  std::vector<Value*> packed_out;
  std::vector<Value*> stashed;
};

class ProgramMaker {
 public:
  ProgramMaker(const FlatGraph& flat, const GraphAliases& aliases, const std::vector<int>& cuts,
               std::int64_t most_shared_bytes)
      : flat_(flat),
        aliases_(aliases),
        cuts_(cuts),
        most_shared_bytes_(most_shared_bytes),
        programs_(cuts.size() + 1),
        values_(cuts.size() + 1) {
    for (std::size_t slot = 0; slot < flat.slots.size(); ++slot) {
      slot_of_[flat.slot_values[slot].value] = static_cast<int>(slot);
    }
  }

  std::vector<LayerProgram> run() {
    find_same_tensors();
    route_inputs();
    for (const FlatValue& value : flat_.values) route(traveller(value));
    for (std::size_t slot = 0; slot < flat_.slots.size(); ++slot) route_slot(slot);
    place_unused();
    for (std::size_t layer = 0; layer < programs_.size(); ++layer) make(static_cast<int>(layer));
    return std::move(programs_);
  }

 private:
  int num_layers() const { return static_cast<int>(programs_.size()); }

  int layer_of(int node) const {
    return static_cast<int>(std::upper_bound(cuts_.begin(), cuts_.end(), std::min(node, flat_.num_nodes() - 1)) -
                            cuts_.begin());
  }

  // Tensors that may be one and the same, and are handed on together, are packed.
  void find_same_tensors() {
    for (const int cut : cuts_) {
      std::vector<Value*> live;
      for (const FlatValue& value : flat_.values) {
        if (value.is_live_at(cut) && is_tensor(*value.value)) live.push_back(value.value);
      }
      for (std::size_t one = 0; one < live.size(); ++one) {
        for (std::size_t other = one + 1; other < live.size(); ++other) {
          if (packed_.count(live[one]) != 0 && packed_.count(live[other]) != 0) continue;
          if (!aliases_.may_be_same(live[one], live[other])) continue;
          packed_.insert(live[one]);
          packed_.insert(live[other]);
        }
      }
    }
  }

  static bool is_tensor(const Value& value) { return value.type()->kind() == c10::TypeKind::TensorType; }

  Traveller traveller(const FlatValue& value) const {
    Traveller result;
    result.value = value.value;
    result.is_packed = !is_tensor(*value.value) || packed_.count(value.value) != 0;
    std::set<int> layers = {value.made_by < 0 ? 0 : layer_of(value.made_by)};
    for (const int user : value.used_by) layers.insert(layer_of(user));
    result.layers.assign(layers.begin(), layers.end());
    return result;
  }

  void route_inputs() {
    programs_[0].inputs = flat_.inputs;
    for (std::size_t index = 0; index < flat_.inputs.size(); ++index) {
      values_[0].direct_in.push_back(flat_.graph->inputs()[index]);
    }
  }

  void route(const Traveller& traveller) {
    for (std::size_t index = 1; index < traveller.layers.size(); ++index) {
      const int from = traveller.layers[index - 1];
      const int to = traveller.layers[index];
      if (traveller.is_packed) {
        for (int layer = from; layer < to; ++layer) {
          values_[layer].packed_out.push_back(traveller.value);
          values_[layer + 1].packed_in.push_back(traveller.value);
        }
      } else if (to == from + 1) {
        values_[from].direct_out.push_back(traveller.value);
        values_[to].direct_in.push_back(traveller.value);
      } else {
        const std::string name = fmt::format("%{} after layer {}", traveller.value->debugName(), from);
        values_[from].stashed.push_back(traveller.value);
        programs_[from].stashed.push_back(name);
        values_[to].popped.push_back(traveller.value);
        programs_[to].popped.push_back(name);
      }
    }
  }

  // Parameters and buffers belong to the first layer that uses them.
  void route_slot(std::size_t slot) {
    const AttributeSlot& attribute = flat_.slots[slot];
    if (attribute.kind != AttributeSlot::Kind::kParameter && attribute.kind != AttributeSlot::Kind::kBuffer) return;
    const FlatValue& value = flat_.slot_values[slot];
    Traveller shared;
    shared.value = value.value;
    std::set<int> layers;
    for (const int user : value.used_by) layers.insert(layer_of(user));
    if (layers.empty()) return;
    owner_of_[attribute.name()] = *layers.begin();
    const auto bytes = static_cast<std::int64_t>(attribute.tensor.nbytes());
    if (attribute.kind == AttributeSlot::Kind::kParameter && bytes > most_shared_bytes_) return;
    shared.layers.assign(layers.begin(), layers.end());
    route(shared);
  }

  // Weights that no operation reads belong to the layer that has the weight before them in the module.
  void place_unused() {
    int layer = 0;
    for (const AttributeSlot& weight : flat_.weights) {
      const auto owner = owner_of_.find(weight.name());
      if (owner != owner_of_.end()) {
        layer = owner->second;
      } else {
        programs_[layer].unused.push_back(weight);
      }
    }
  }

  void make(int layer) {
    LayerProgram& program = programs_[layer];
    const LayerValues& values = values_[layer];
    program.is_last = layer + 1 == num_layers();
    program.num_direct_in = values.direct_in.size();
    for (const Value* value : values.packed_in) program.packed_in.push_back(value->type());
    program.num_direct_out = values.direct_out.size();
    program.num_packed_out = values.packed_out.size();
    const auto graph = std::make_shared<Graph>();
    std::unordered_map<const Value*, Value*> copies;
    for (const auto* list : {&values.direct_in, &values.packed_in, &values.popped}) {
      for (const Value* value : *list) copies[value] = add_input(*graph, *value);
    }
    const auto copy_of = [&](Value* value) { return copy(*graph, copies, layer, value); };
    const int begin = layer == 0 ? 0 : cuts_[layer - 1];
    const int end = program.is_last ? flat_.num_nodes() : cuts_[layer];
    for (int index = begin; index < end; ++index) {
      Node* const node = flat_.nodes[index];
      for (Value* value : values_used_by(node)) copy_of(value);
      for_each_within(node, [&](Node* inner) { note_norm(*inner, program); });
      Node* const made = graph->appendNode(graph->createClone(node, copy_of));
      for (std::size_t output = 0; output < node->outputs().size(); ++output) {
        copies[node->outputs()[output]] = made->outputs()[output];
      }
    }
    if (program.is_last) {
      graph->registerOutput(copy_of(flat_.graph->outputs()[0]));
    } else {
      for (const auto* list : {&values.direct_out, &values.packed_out, &values.stashed}) {
        for (Value* value : *list) graph->registerOutput(copy_of(value));
      }
    }
    graph->lint();
    program.code = torch::jit::Code(graph, "layer");
    program.classes = flat_.classes;
    program.recorded_mode = flat_.recorded_mode;
  }

  void note_norm(const Node& node, LayerProgram& program) const {
    const std::optional<std::string> scope = deferred_norm_of(node);
    if (scope) program.deferred_norms.push_back(flat_.deferred_norms.at(*scope));
  }

  static Value* add_input(Graph& graph, const Value& value) {
    Value* const input = graph.addInput();
    input->setType(value.type());
    return input;
  }

  // The layer's own copy of a value; of slots and constants it is made when it is first needed.
  Value* copy(Graph& graph, std::unordered_map<const Value*, Value*>& copies, int layer, Value* value) {
    const auto known = copies.find(value);
    if (known != copies.end()) return known->second;
    const auto slot = slot_of_.find(value);
    if (slot != slot_of_.end()) {
      AttributeSlot own = flat_.slots[slot->second];
      const auto owner = owner_of_.find(own.name());
      own.is_tied_user =
          own.kind == AttributeSlot::Kind::kParameter && owner != owner_of_.end() && owner->second != layer;
      programs_[layer].slots.push_back(std::move(own));
      return copies[value] = add_input(graph, *value);
    }
    if (value->node()->kind() != prim::Constant) {
      throw Error(
          fmt::format("a layer of a TorchScript module has no value %{}; please report it", value->debugName()));
    }
    Node* const constant = graph.createClone(value->node(), [](Value* same) { return same; });
    return copies[value] = graph.prependNode(constant)->output();
  }

  const FlatGraph& flat_;
  const GraphAliases& aliases_;
  const std::vector<int>& cuts_;
  const std::int64_t most_shared_bytes_;
  std::unordered_map<const Value*, int> slot_of_;
  std::set<const Value*> packed_;
  std::vector<LayerProgram> programs_;
  std::vector<LayerValues> values_;
  std::map<std::string, int> owner_of_;  // layers, by the names of parameters and buffers
};

}  // namespace

std::vector<LayerProgram> make_programs(const FlatGraph& flat, const GraphAliases& aliases,
                                        const std::vector<int>& cuts, std::int64_t most_shared_bytes) {
  return ProgramMaker(flat, aliases, cuts, most_shared_bytes).run();
}

}  // namespace gpipe::detail
