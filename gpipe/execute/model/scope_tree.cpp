#include "gpipe/execute/model/scope_tree.h"

#include <algorithm>
#include <utility>

#include "gpipe/model/open_module.h"

namespace gpipe::detail {
namespace {

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// See Note [One tree of modules].
class MergedScope : public torch::nn::Module {
 public:
  explicit MergedScope(Modules modules) : modules_(std::move(modules)) {
    if (!modules_.empty()) Module::train(modules_.front()->is_training());
  }

  // Last those of the parts: what a module makes of the switch goes before what was made of its submodules here.
  void train(bool on = true) override {
    Module::train(on);
    for (const auto& module : modules_) module->train(on);
  }

 private:
  const Modules modules_;
};

// The module's own ones. A weight that is there already is of a tie that is not bound yet.
void register_weights(torch::nn::Module& into, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (parameters_in(into).contains(item.key())) continue;
    into.register_parameter(item.key(), item.value(), item.value().requires_grad());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) into.register_buffer(item.key(), item.value());
}

}  // namespace

ScopeTree::Scope& ScopeTree::Scope::child(const std::string& child_name) {
  // Mostly the last one.
  const auto found =
      std::find_if(children.rbegin(), children.rend(), [&](const Scope& scope) { return scope.name == child_name; });
  if (found != children.rend()) return *found;
  children.push_back({child_name});
  return children.back();
}

ScopeTree::Scope& ScopeTree::Scope::at(const std::string& path) {
  const std::size_t dot = path.find('.');
  Scope& first = child(path.substr(0, dot));
  return dot == std::string::npos ? first : first.at(path.substr(dot + 1));
}

bool ScopeTree::Scope::has_modules() const {
  return !modules.empty() ||
         std::any_of(children.begin(), children.end(), [](const Scope& scope) { return scope.has_modules(); });
}

ScopeTree::ScopeTree(const LayerChain& chain, const WeightNames& names) : place_of_layer_(chain.size(), -1) {
  for (int layer = 0; layer < chain.size(); ++layer) {
    if (!chain.is_part(layer)) root_.at(chain.name(layer)).layer = layer;
    for (const std::string& name : chain.weight_names(layer)) {
      if (names.layer_of(name) != layer) continue;  // of another layer, by a tie
      const std::size_t last = name.rfind('.');
      Scope& scope = last == std::string::npos ? root_ : root_.at(name.substr(0, last));
      scope.weights.push_back(name);
    }
  }
  number(root_);
}

void ScopeTree::number(const Scope& scope) {
  for (const std::string& weight : scope.weights) place_of_weight_[weight] = num_places_++;
  if (scope.layer != WeightNames::kNoLayer) place_of_layer_[scope.layer] = num_places_++;
  for (const Scope& child : scope.children) number(child);
}

int ScopeTree::place_of(int layer, const std::string& weight_name) const {
  if (place_of_layer_[layer] >= 0) return place_of_layer_[layer];
  const auto found = place_of_weight_.find(weight_name);
  return found == place_of_weight_.end() ? num_places_ : found->second;
}

void ScopeTree::register_in(torch::nn::Module& face, const std::vector<ChainLayer>& layers) const {
  for (const auto& child : face.named_children()) face.unregister_module(child.key());
  parameters_in(face).clear();
  buffers_in(face).clear();
  Scope root = root_;
  for (const ChainLayer& layer : layers) {
    const bool is_part = layer.scope.empty();
    (is_part ? root : root.at(layer.name)).modules.push_back(layer.layer.module);
  }
  fill(face, root);
}

void ScopeTree::fill(torch::nn::Module& module, Scope& scope) {
  for (const auto& part : scope.modules) {
    register_weights(module, *part);
    for (const auto& child : part->named_children()) scope.child(child.key()).modules.push_back(child.value());
  }
  for (Scope& child : scope.children) {
    if (!child.has_modules()) continue;  // all of it is in other processes
    const bool is_alone =
        child.modules.size() == 1 && std::none_of(child.children.begin(), child.children.end(),
                                                  [](const Scope& inner) { return inner.has_modules(); });
    if (is_alone) {
      module.register_module(child.name, child.modules.front());
      continue;
    }
    const auto merged = std::make_shared<MergedScope>(child.modules);
    fill(*merged, child);
    module.register_module(child.name, merged);
  }
}

}  // namespace gpipe::detail
