#include "gpipe/model/layer_chain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/skip.h"

namespace gpipe {
namespace {

// FNV-1a: a name's part in the seed of its weights; the same on every machine.
std::uint64_t hash(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// Parts are separated by dots.
bool has_empty_part(const std::string& name) {
  return name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos;
}

// A layer that `name` is inside of, or that is inside of it; empty if there is none.
std::string nested_with(const std::string& name, const std::set<std::string>& layers) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (layers.count(name.substr(0, dot)) != 0) return name.substr(0, dot);
  }
  const std::string inside = name + ".";
  const auto next = layers.lower_bound(inside);
  const bool is_inside = next != layers.end() && next->compare(0, inside.size(), inside) == 0;
  return is_inside ? *next : "";
}

// Of what add_part was told, for layers that are built later.
void check_weight_names(const std::string& layer, const std::vector<std::string>& told, const Layer& built) {
  std::vector<std::string> got = names_of_weights(*built.module);
  if (std::is_permutation(got.begin(), got.end(), told.begin(), told.end())) return;
  throw InvalidArgument(fmt::format(
      "the part \"{}\" was added with the parameters and buffers [{}], but is built with [{}]; give add_part the names "
      "that it will have",
      layer, fmt::join(told, ", "), fmt::join(got, ", ")));
}

}  // namespace

LayerChain::LayerChain(const torch::nn::Sequential& model) {
  const auto children = model->named_children();
  std::size_t index = 0;
  for (auto module = model->begin(); module != model->end(); ++module, ++index) {
    add_built(children[index].key(), /*has_module=*/true, [&] { return make_layer(*module); });
  }
}

LayerChain& LayerChain::add_entry(Entry entry) {
  if (has_empty_part(entry.name)) {
    throw InvalidArgument(fmt::format("\"{}\" cannot be a layer's name; no part of it may be empty", entry.name));
  }
  if (layer_of_name_.count(entry.name) != 0) {
    throw InvalidArgument(fmt::format("there is a layer named \"{}\" already", entry.name));
  }
  layer_of_name_[entry.name] = size();
  layers_.push_back(std::move(entry));
  return *this;
}

LayerChain& LayerChain::add_layer(const std::string& name, std::function<Layer()> build) {
  const std::string other = nested_with(name, scopes_);
  if (!other.empty()) {
    throw InvalidArgument(
        fmt::format("\"{}\" and \"{}\" cannot both be layers: one would be inside the other", other, name));
  }
  add_entry({name, std::move(build)});
  scopes_.insert(name);
  return *this;
}

LayerChain& LayerChain::add_built(const std::string& name, bool has_module, const std::function<Layer()>& make) {
  if (!has_module) {
    throw InvalidArgument(fmt::format(
        "the module for layer \"{}\" is empty; build it first, or name its type: add<Holder>(name, args)", name));
  }
  add_layer(name, [shared = make()] { return shared; });
  layers_.back().is_built = true;
  return *this;
}

LayerChain& LayerChain::add_part(const std::string& name, std::vector<std::string> weight_names,
                                 std::function<Layer()> build) {
  Entry entry{name, std::move(build)};
  entry.is_part = true;
  entry.weight_names = std::move(weight_names);
  return add_entry(std::move(entry));
}

LayerChain& LayerChain::add_built_part(const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                                       const std::function<Layer()>& make) {
  if (module == nullptr) {
    throw InvalidArgument(fmt::format("the module for the part \"{}\" is empty; build it first", name));
  }
  add_part(name, names_of_weights(*module), [shared = make()] { return shared; });
  layers_.back().is_built = true;
  return *this;
}

LayerChain& LayerChain::tie(const TiedWeight& owner, const TiedWeight& user) {
  ties_.push_back({owner, user});
  return *this;
}

bool LayerChain::is_tied_user(int layer, const std::string& weight_name) const {
  return std::any_of(ties_.begin(), ties_.end(), [&](const TieNames& tie) {
    return tie.user.name == weight_name && (tie.user.layer.empty() || tie.user.layer == name(layer));
  });
}

LayerChain& LayerChain::isolate(const std::string& layer, const std::string& skip_namespace) {
  const auto found = layer_of_name_.find(layer);
  if (found == layer_of_name_.end()) {
    throw InvalidArgument(fmt::format("there is no layer named \"{}\" whose skips could be isolated", layer));
  }
  layers_[found->second].skip_namespace = skip_namespace;
  return *this;
}

Layer LayerChain::build(int layer, std::uint64_t seed) const {
  const Entry& entry = layers_[layer];
  LayerRun run;
  run.seed = seed ^ hash(entry.name);
  const LayerScope scope(run);
  Layer built = entry.build();
  if (entry.is_part && !entry.is_built) check_weight_names(entry.name, entry.weight_names, built);
  if (entry.skip_namespace.empty()) return built;
  const auto forward = [inner = std::move(built.forward), name = entry.skip_namespace](Tensors tensors) {
    const SkipNamespace skip_namespace(name);
    return inner(std::move(tensors));
  };
  return {std::move(built.module), forward};
}

std::vector<std::string> names_of_weights(const torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& scope, const torch::nn::Module& owner) {
    const std::string prefix = scope.empty() ? "" : scope + ".";
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) names.push_back(prefix + item.key());
    for (const auto& item : owner.named_buffers(/*recurse=*/false)) names.push_back(prefix + item.key());
  };
  add("", module);
  for (const auto& submodule : module.named_modules("", /*include_self=*/false)) {
    add(submodule.key(), *submodule.value());
  }
  return names;
}

}  // namespace gpipe
