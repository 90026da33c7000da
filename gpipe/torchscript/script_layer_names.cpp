#include "gpipe/torchscript/script_layer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "gpipe/torchscript/graph_walk.h"
#include "gpipe/torchscript/operation_weights.h"

namespace gpipe::detail {
namespace {

using torch::jit::Node;
using torch::jit::Value;

// What both paths begin with, in whole names.
std::string common_path(const std::string& one, const std::string& other) {
  std::size_t end = 0;
  for (std::size_t index = 0;; ++index) {
    const bool one_ends = index >= one.size() || one[index] == '.';
    const bool other_ends = index >= other.size() || other[index] == '.';
    if (one_ends && other_ends) end = index;
    if (index >= one.size() || index >= other.size() || one[index] != other[index]) break;
  }
  return one.substr(0, end);
}

// The submodule whose parameters or buffers the node uses; empty if there is none.
std::string scope_of(const FlatGraph& flat, const std::unordered_map<const Value*, std::size_t>& slot_of, Node* node) {
  for (const Value* value : values_used_by(node)) {
    const auto slot = slot_of.find(value);
    if (slot == slot_of.end()) continue;
    const AttributeSlot::Kind kind = flat.slots[slot->second].kind;
    if (kind == AttributeSlot::Kind::kParameter || kind == AttributeSlot::Kind::kBuffer) {
      return flat.slots[slot->second].scope;
    }
  }
  return "";
}

// "aten::add_" becomes "add_".
std::string operation_name(const Node& node) { return node.kind().toUnqualString(); }

}  // namespace

std::vector<std::string> script_layer_names(const FlatGraph& flat, const std::vector<int>& cuts) {
  std::unordered_map<const Value*, std::size_t> slot_of;
  for (std::size_t slot = 0; slot < flat.slots.size(); ++slot) slot_of[flat.slot_values[slot].value] = slot;
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (std::size_t layer = 0; layer <= cuts.size(); ++layer) {
    const int begin = layer == 0 ? 0 : cuts[layer - 1];
    const int end = layer == cuts.size() ? flat.num_nodes() : cuts[layer];
    std::vector<std::string> heavy;
    std::string any;
    for (int index = begin; index < end; ++index) {
      const std::string scope = scope_of(flat, slot_of, flat.nodes[index]);
      if (scope.empty()) continue;
      if (any.empty()) any = scope;
      if (num_heavy_operations(flat.nodes[index]) > 0) heavy.push_back(scope);
    }
    std::string name = heavy.empty() ? any : heavy.front();
    for (const std::string& scope : heavy) name = common_path(name, scope);
    if (name.empty() && !heavy.empty()) name = heavy.front();
    if (name.empty()) name = begin < end ? operation_name(*flat.nodes[begin]) : "module";
    std::string unique = name;
    for (int number = 2; !taken.insert(unique).second; ++number) unique = fmt::format("{}_{}", name, number);
    names.push_back(unique);
  }
  return names;
}

}  // namespace gpipe::detail
