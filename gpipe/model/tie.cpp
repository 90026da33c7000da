#include "gpipe/model/tie.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "gpipe/error.h"

namespace gpipe::detail {
namespace {

// Opens Module::parameters_, which derived classes may use: registering has no counterpart that takes a parameter out
// again.
struct Registry : torch::nn::Module {
  static torch::OrderedDict<std::string, at::Tensor>& parameters_of(torch::nn::Module& module) {
    return module.*(&Registry::parameters_);
  }
};

Tie::Use find(const std::string& name, const std::vector<std::string>& layer_names, const std::vector<Layer>& layers) {
  // At most one: no layer is inside another.
  const auto found = std::find_if(layer_names.begin(), layer_names.end(), [&](const std::string& layer) {
    return name == layer ||
           (name.size() > layer.size() && name[layer.size()] == '.' && name.compare(0, layer.size(), layer) == 0);
  });
  if (found == layer_names.end()) {
    throw InvalidArgument(
        fmt::format("\"{}\" is tied, but there is no layer \"{}\"", name, name.substr(0, name.rfind('.'))));
  }
  const std::string& layer_name = *found;
  Tie::Use result;
  result.layer = static_cast<int>(found - layer_names.begin());
  result.module = layers[result.layer].module;
  const std::size_t last = name.rfind('.');
  result.key = last == std::string::npos ? "" : name.substr(last + 1);
  if (result.module == nullptr) return result;  // another rank checks it
  if (last != std::string::npos && last > layer_name.size()) {
    const std::string path = name.substr(layer_name.size() + 1, last - layer_name.size() - 1);
    const auto modules = result.module->named_modules("", /*include_self=*/false);
    result.module = modules.contains(path) ? modules[path] : nullptr;
  }
  const at::Tensor* weight =
      result.module == nullptr ? nullptr : Registry::parameters_of(*result.module).find(result.key);
  if (weight == nullptr) {
    std::string names;
    for (const auto& parameter : layers[result.layer].module->named_parameters()) {
      names += fmt::format("{}{}.{}", names.empty() ? "" : ", ", layer_name, parameter.key());
    }
    throw InvalidArgument(fmt::format("\"{}\" is tied, but layer \"{}\" has no such parameter; it has {}", name,
                                      layer_name, names.empty() ? "none" : names));
  }
  result.weight = *weight;
  return result;
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " of " << tensor.dtype();
  return text.str();
}

void check_alike(const TieNames& names, const Tie::Use& owner, const Tie::Use& user) {
  const bool are_here = owner.module != nullptr && user.module != nullptr;
  if (names.owner == names.user || (are_here && owner.weight.is_same(user.weight))) {
    throw InvalidArgument(fmt::format("\"{}\" is tied to itself", names.user));
  }
  if (!are_here) return;
  if (owner.weight.sizes() != user.weight.sizes() || owner.weight.dtype() != user.weight.dtype()) {
    throw InvalidArgument(fmt::format("\"{}\" cannot be tied to \"{}\": {} against {}", names.user, names.owner,
                                      describe(user.weight), describe(owner.weight)));
  }
}

}  // namespace

std::vector<Tie> bind_ties(const std::vector<TieNames>& names, const std::vector<std::string>& layer_names,
                           const std::vector<Layer>& layers) {
  std::set<std::string> users;
  for (const TieNames& tie : names) {
    if (!users.insert(tie.user).second) {
      throw InvalidArgument(fmt::format("\"{}\" is tied twice; give it one owner", tie.user));
    }
  }
  std::vector<std::pair<Tie::Use, Tie::Use>> pairs;
  for (const TieNames& tie : names) {
    if (users.count(tie.owner) != 0) {
      throw InvalidArgument(
          fmt::format("\"{}\" owns \"{}\", but is tied to another itself; tie both to that one", tie.owner, tie.user));
    }
    pairs.emplace_back(find(tie.owner, layer_names, layers), find(tie.user, layer_names, layers));
    check_alike(tie, pairs.back().first, pairs.back().second);
  }
  std::map<std::string, Tie> by_owner;
  for (std::size_t index = 0; index < pairs.size(); ++index) {
    const auto& [owner, user] = pairs[index];
    Tie& tie = by_owner[names[index].owner];
    tie.owner = owner;
    tie.users.push_back(user);
    if (user.module != nullptr) Registry::parameters_of(*user.module).erase(user.key);
  }
  std::vector<Tie> ties;
  for (auto& [name, tie] : by_owner) {
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
    Registry::parameters_of(*user.module).insert(user.key, weight);
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
    Registry::parameters_of(*user.module).insert(user.key, weight);
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

void check_not_shared(const std::vector<std::string>& layer_names, const std::vector<Layer>& layers) {
  struct Holder {
    std::size_t layer = 0;
    std::string name;
  };
  std::map<const c10::TensorImpl*, Holder> seen;
  const auto check = [&](std::size_t layer, const std::string& key, const at::Tensor& tensor, const char* remedy) {
    if (!tensor.defined()) return;
    const std::string name = layer_names[layer] + "." + key;
    const auto [found, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), Holder{layer, name});
    if (is_new || found->second.layer == layer) return;
    throw InvalidArgument(
        fmt::format("\"{}\" and \"{}\" are the same tensor, which two stages would change at once; build two layers{}",
                    found->second.name, name, remedy));
  };
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].module == nullptr) continue;
    for (const auto& item : layers[layer].module->named_parameters()) {
      check(layer, item.key(), item.value(), " and tie them with LayerChain::tie");
    }
    for (const auto& item : layers[layer].module->named_buffers()) check(layer, item.key(), item.value(), "");
  }
}

}  // namespace gpipe::detail
