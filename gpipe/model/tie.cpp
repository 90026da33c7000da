#include "gpipe/model/tie.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "gpipe/error.h"
#include "gpipe/model/open_module.h"
#include "gpipe/model/weight_names.h"

namespace gpipe::detail {
namespace {

std::string describe(const TiedWeight& weight) {
  return weight.layer.empty() ? fmt::format("\"{}\"", weight.name)
                              : fmt::format("\"{}\" of the layer \"{}\"", weight.name, weight.layer);
}

// The layer that has the weight, whether it is built here or not.
int find_layer(const TiedWeight& weight, const LayerChain& chain, const WeightNames& names) {
  if (!weight.layer.empty()) {
    for (int layer = 0; layer < chain.size(); ++layer) {
      if (chain.name(layer) == weight.layer) return layer;
    }
    throw InvalidArgument(fmt::format("{} is tied, but there is no such layer", describe(weight)));
  }
  const std::vector<int> layers = names.layers_of(weight.name);
  if (layers.empty()) {
    throw InvalidArgument(fmt::format("{} is tied, but there is no layer \"{}\"", describe(weight),
                                      weight.name.substr(0, weight.name.rfind('.'))));
  }
  if (layers.size() > 1) {
    throw InvalidArgument(
        fmt::format("{0} is tied, but {1} parts have it; say whose it is with the part's name: {{\"{2}\", {0}}}",
                    describe(weight), layers.size(), chain.name(layers.front())));
  }
  return layers.front();
}

Tie::Use find(const TiedWeight& weight, const LayerChain& chain, const WeightNames& names,
              const std::vector<Layer>& layers) {
  Tie::Use result;
  result.layer = find_layer(weight, chain, names);
  const std::string scope = chain.scope(result.layer);
  const std::string& name = weight.name;
  const bool is_inside = name.compare(0, scope.size(), scope) == 0;
  const std::string own_name = is_inside ? name.substr(scope.size()) : "";
  const std::size_t last = own_name.rfind('.');
  result.key = last == std::string::npos ? own_name : own_name.substr(last + 1);
  result.module = layers[result.layer].module;
  if (result.module == nullptr) return result;  // another rank checks it
  if (last != std::string::npos) {
    const auto modules = result.module->named_modules("", /*include_self=*/false);
    const std::string path = own_name.substr(0, last);
    result.module = modules.contains(path) ? modules[path] : nullptr;
  }
  const at::Tensor* tensor = result.module == nullptr ? nullptr : parameters_in(*result.module).find(result.key);
  if (tensor == nullptr) {
    std::string has;
    for (const auto& parameter : layers[result.layer].module->named_parameters()) {
      has += fmt::format("{}{}{}", has.empty() ? "" : ", ", scope, parameter.key());
    }
    throw InvalidArgument(fmt::format("\"{}\" is tied, but layer \"{}\" has no such parameter; it has {}", name,
                                      chain.name(result.layer), has.empty() ? "none" : has));
  }
  result.weight = *tensor;
  return result;
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " of " << tensor.dtype();
  return text.str();
}

void check_alike(const TieNames& names, const Tie::Use& owner, const Tie::Use& user) {
  const bool are_here = owner.module != nullptr && user.module != nullptr;
  if ((names.owner.name == names.user.name && owner.layer == user.layer) ||
      (are_here && owner.weight.is_same(user.weight))) {
    throw InvalidArgument(fmt::format("{} is tied to itself", describe(names.user)));
  }
  if (!are_here) return;
  if (owner.weight.sizes() != user.weight.sizes() || owner.weight.dtype() != user.weight.dtype()) {
    throw InvalidArgument(fmt::format("{} cannot be tied to {}: {} against {}", describe(names.user),
                                      describe(names.owner), describe(user.weight), describe(owner.weight)));
  }
}

// A parameter of one layer.
using Place = std::pair<std::string, int>;  // its name in the model, the layer

}  // namespace

std::vector<Tie> bind_ties(const LayerChain& chain, const std::vector<Layer>& layers) {
  const WeightNames weight_names(chain);
  std::vector<std::pair<Tie::Use, Tie::Use>> pairs;
  std::set<Place> users;
  for (const TieNames& tie : chain.ties()) {
    pairs.emplace_back(find(tie.owner, chain, weight_names, layers), find(tie.user, chain, weight_names, layers));
    if (!users.insert({tie.user.name, pairs.back().second.layer}).second) {
      throw InvalidArgument(fmt::format("{} is tied twice; give it one owner", describe(tie.user)));
    }
    check_alike(tie, pairs.back().first, pairs.back().second);
  }
  std::map<Place, Tie> by_owner;
  for (std::size_t index = 0; index < pairs.size(); ++index) {
    const TieNames& names = chain.ties()[index];
    const auto& [owner, user] = pairs[index];
    const Place place(names.owner.name, owner.layer);
    if (users.count(place) != 0) {
      throw InvalidArgument(fmt::format("{} owns {}, but is tied to another itself; tie both to that one",
                                        describe(names.owner), describe(names.user)));
    }
    Tie& tie = by_owner[place];
    tie.owner = owner;
    tie.users.push_back(user);
  }
  for (const auto& [owner, user] : pairs) {
    if (user.module != nullptr) parameters_in(*user.module).erase(user.key);
  }
  std::vector<Tie> ties;
  for (auto& [place, tie] : by_owner) {
    std::stable_sort(tie.users.begin(), tie.users.end(),
                     [](const auto& a, const auto& b) { return a.layer < b.layer; });
    relink(tie);
    ties.push_back(std::move(tie));
  }
  return ties;
}

void untie(const Tie& tie) {
  for (const Tie::Use& user : tie.users) {
    if (user.module == nullptr) continue;
    at::Tensor weight = user.weight;
    if (tie.owner.module != nullptr) weight.set_data(tie.owner.weight.detach().clone());
    parameters_in(*user.module).insert(user.key, weight);
  }
}

void keep_own(Tie& tie, const std::function<bool(int layer)>& is_own) {
  for (Tie::Use& user : tie.users) {
    if (user.module == nullptr) continue;
    at::Tensor weight = user.weight;
    if (is_own(user.layer)) {
      if (!is_own(tie.owner.layer)) weight.set_data(weight.detach().clone());
      continue;
    }
    weight.set_data(at::empty({0}, weight.options()));
    parameters_in(*user.module).insert(user.key, weight);
    user.module = nullptr;
    user.weight = at::Tensor();
  }
  if (is_own(tie.owner.layer)) return;
  tie.owner.module = nullptr;
  tie.owner.weight = at::Tensor();
}

void relink(const Tie& tie) {
  const at::Tensor& owner = tie.owner.weight;
  if (tie.owner.module == nullptr) return;
  for (const Tie::Use& user : tie.users) {
    if (user.module == nullptr) continue;
    at::Tensor weight = user.weight;
    if (weight.unsafeGetTensorImpl()->data() != owner.unsafeGetTensorImpl()->data() ||
        weight.dtype() != owner.dtype() || weight.device() != owner.device()) {
      weight.mutable_grad().reset();
      weight.set_data(owner.detach());
    }
    if (weight.requires_grad() != owner.requires_grad()) weight.requires_grad_(owner.requires_grad());
  }
}

void forget_user_grads(const Tie& tie) {
  for (const Tie::Use& user : tie.users) {
    if (user.module != nullptr) user.weight.mutable_grad().reset();
  }
}

void check_not_shared(const LayerChain& chain, const std::vector<Layer>& layers) {
  struct Holder {
    int layer = 0;
    std::string name;
  };
  std::map<const c10::TensorImpl*, Holder> seen;
  const auto check = [&](int layer, const std::string& key, const at::Tensor& tensor, const char* remedy) {
    if (!tensor.defined()) return;
    const std::string name = fmt::format("\"{}{}\"{}", chain.scope(layer), key,
                                         chain.is_part(layer) ? fmt::format(" of \"{}\"", chain.name(layer)) : "");
    const auto [found, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), Holder{layer, name});
    if (is_new || found->second.layer == layer) return;
    throw InvalidArgument(
        fmt::format("{} and {} are the same tensor, which two stages would change at once; build two layers{}",
                    found->second.name, name, remedy));
  };
  for (int layer = 0; layer < chain.size(); ++layer) {
    const std::shared_ptr<torch::nn::Module>& module = layers[layer].module;
    if (module == nullptr) continue;
    for (const auto& item : module->named_parameters()) {
      check(layer, item.key(), item.value(), " and tie them with LayerChain::tie");
    }
    for (const auto& item : module->named_buffers()) check(layer, item.key(), item.value(), "");
  }
}

}  // namespace gpipe::detail
