#include "gpipe/torchscript/cut_rules.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "gpipe/torchscript/graph_walk.h"
#include "gpipe/torchscript/packed_values.h"

namespace gpipe::detail {
namespace {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

bool is_tensor(const Value& value) { return value.type()->kind() == c10::TypeKind::TensorType; }

bool is_list_or_dict(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType || type.kind() == c10::TypeKind::DictType;
}

bool holds_list_or_dict(const c10::Type& type) {
  for (const auto& contained : type.containedTypes()) {
    if (is_list_or_dict(*contained) || holds_list_or_dict(*contained)) return true;
  }
  return false;
}

// The rules on one graph. Positions are those of cuts: k is before node k.
class CutFinder {
 public:
  CutFinder(const FlatGraph& flat, const GraphAliases& aliases)
      : flat_(flat), aliases_(aliases), allowed_(static_cast<std::size_t>(flat.num_nodes()), true) {
    if (!allowed_.empty()) allowed_[0] = false;
    for (const FlatValue& value : flat.values) {
      if (last_cut(value) > value.made_by) handed_on_.push_back(&value);
    }
    asked_ = handed_on_;
    for (const FlatValue& slot : flat.slot_values) {
      if (is_tensor(*slot.value)) asked_.push_back(&slot);
    }
    for (int node = 0; node < flat.num_nodes(); ++node) {
      for (const Value* value : aliases.written()[node]) writes_.push_back({node, value});
    }
  }

  CutRules run() {
    forbid_within_scopes();
    forbid_before_own_gradients();
    for (const FlatValue* value : handed_on_) {
      if (!can_be_packed(*value->value->type())) forbid(value->made_by, last_cut(*value));
    }
    std::set<const FlatValue*> written_slots;
    for (const Write& write : writes_) {
      for (const FlatValue* value : seen_in(write.value)) {
        if (is_slot(*value)) {
          written_slots.insert(value);
        } else {
          forbid_around(write, *value);
        }
      }
    }
    for (const FlatValue* slot : written_slots) forbid_between_uses(*slot);
    return {std::move(allowed_)};
  }

 private:
  struct Write {
    int node = 0;
    const Value* value = nullptr;
  };

  // The last position at which the value is live; the first is made_by + 1.
  int last_cut(const FlatValue& value) const {
    return value.used_by.empty() ? value.made_by : std::min(value.used_by.back(), flat_.num_nodes() - 1);
  }

  // No cut behind node `first`, up to the one before node `last`.
  void forbid(int first, int last) {
    for (int cut = first + 1; cut <= last; ++cut) allowed_[cut] = false;
  }

  void forbid_within_scopes() {
    int depth = 0;
    int first_switch = -1;
    int last_switch = -1;
    int num_switches = 0;
    for (int index = 0; index < flat_.num_nodes(); ++index) {
      if (depth > 0) allowed_[index] = false;
      if (flat_.nodes[index]->kind() == prim::Enter) ++depth;
      if (flat_.nodes[index]->kind() == prim::Exit) --depth;
      for_each_within(flat_.nodes[index], [&](Node* node) {
        if (std::string_view(node->kind().toQualString()).find("set_grad_enabled") == std::string_view::npos) return;
        if (first_switch < 0) first_switch = index;
        last_switch = index;
        ++num_switches;
      });
    }
    if (num_switches > 0) forbid(first_switch, num_switches % 2 == 0 ? last_switch : flat_.num_nodes() - 1);
  }

  void forbid_before_own_gradients() {
    for (int index = flat_.num_nodes() - 1; index >= 0; --index) {
      bool is_gradient = false;
      for_each_within(flat_.nodes[index], [&](Node* node) {
        const std::string_view name = node->kind().toQualString();
        is_gradient |= name == "aten::grad" || name == "aten::backward" || name == "aten::_backward";
      });
      if (is_gradient) return forbid(0, index);
    }
  }

  void forbid_around(const Write& write, const FlatValue& value) {
    const int first = value.made_by;
    const int last = last_cut(value);
    if (write.node <= first) return;
    if (is_list_or_dict(*write.value->type())) return forbid_where_shared(value, std::min(last, write.node));
    forbid(first, write.value == value.value ? std::min(last, write.node) : last);
  }

  // A list or dictionary that is written to behind a cut is made anew there, unless another value knows it.
  void forbid_where_shared(const FlatValue& list, int last) {
    if (!is_list_or_dict(*list.value->type()) || holds_list_or_dict(*list.value->type())) {
      return forbid(list.made_by, last);
    }
    for (const FlatValue* other : handed_on_) {
      if (other == &list || is_tensor(*other->value)) continue;
      const bool is_shared = holds_list_or_dict(*other->value->type()) ? aliases_.may_share(list.value, other->value)
                                                                       : aliases_.may_be_same(list.value, other->value);
      if (is_shared) forbid(std::max(list.made_by, other->made_by), std::min(last, last_cut(*other)));
    }
  }

  // Whether a write to `written` is seen in `value`.
  bool is_seen(const Value* written, const Value* value) const {
    if (written == value) return true;
    const bool is_container = is_list_or_dict(*written->type());
    if (is_container && is_tensor(*value)) return false;
    const bool by_itself = is_tensor(*value) || (is_container && !holds_list_or_dict(*value->type()));
    return by_itself ? aliases_.may_be_same(written, value) : aliases_.may_share(written, value);
  }

  // The values and slots in which a write to `written` is seen. Asks about many at once, since most share nothing.
  const std::vector<const FlatValue*>& seen_in(const Value* written) {
    const auto [known, is_new] = seen_in_.try_emplace(written);
    if (is_new) add_seen(written, 0, asked_.size(), known->second);
    return known->second;
  }

  void add_seen(const Value* written, std::size_t begin, std::size_t end, std::vector<const FlatValue*>& seen) const {
    constexpr std::size_t kFew = 4;
    if (end - begin <= kFew) {
      for (std::size_t index = begin; index < end; ++index) {
        if (is_seen(written, asked_[index]->value)) seen.push_back(asked_[index]);
      }
      return;
    }
    std::vector<const Value*> values;
    for (std::size_t index = begin; index < end; ++index) values.push_back(asked_[index]->value);
    const bool is_among = std::find(values.begin(), values.end(), written) != values.end();
    if (!is_among && !aliases_.may_share_any(written, values)) return;
    const std::size_t middle = begin + (end - begin) / 2;
    add_seen(written, begin, middle, seen);
    add_seen(written, middle, end, seen);
  }

  bool is_slot(const FlatValue& value) const {
    return &value >= flat_.slot_values.data() && &value < flat_.slot_values.data() + flat_.slot_values.size();
  }

  void forbid_between_uses(const FlatValue& slot) {
    if (slot.used_by.empty()) return;
    int first = slot.used_by.front();
    int last = slot.used_by.back();
    for (const FlatValue* value : seen_in(slot.value)) {
      if (is_slot(*value)) continue;
      first = std::min(first, value->made_by);
      last = std::max(last, value->used_by.back());
    }
    forbid(first, std::min(last, flat_.num_nodes() - 1));
  }

  const FlatGraph& flat_;
  const GraphAliases& aliases_;
  std::vector<bool> allowed_;
  std::vector<const FlatValue*> handed_on_;  // wherever it is cut
  std::vector<Write> writes_;
  std::vector<const FlatValue*> asked_;  // those, and the slots that are tensors
  std::unordered_map<const Value*, std::vector<const FlatValue*>> seen_in_;
};

}  // namespace

CutRules find_cuts(const FlatGraph& flat, const GraphAliases& aliases) { return CutFinder(flat, aliases).run(); }

}  // namespace gpipe::detail
