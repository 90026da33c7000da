#include "gpipe/model/layer_chain.h"

#include <fmt/format.h>

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
std::string nested_with(const std::string& name, const std::map<std::string, int>& layer_of_name) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (layer_of_name.count(name.substr(0, dot)) != 0) return name.substr(0, dot);
  }
  const std::string inside = name + ".";
  const auto next = layer_of_name.lower_bound(inside);
  const bool is_inside = next != layer_of_name.end() && next->first.compare(0, inside.size(), inside) == 0;
  return is_inside ? next->first : "";
}

}  // namespace

LayerChain::LayerChain(const torch::nn::Sequential& model) {
  const auto children = model->named_children();
  std::size_t index = 0;
  for (auto module = model->begin(); module != model->end(); ++module, ++index) {
    add_built(children[index].key(), /*has_module=*/true, [&] { return make_layer(*module); });
  }
}

LayerChain& LayerChain::add_layer(const std::string& name, std::function<Layer()> build) {
  if (has_empty_part(name)) {
    throw InvalidArgument(fmt::format("\"{}\" cannot be a layer's name; no part of it may be empty", name));
  }
  if (layer_of_name_.count(name) != 0) {
    throw InvalidArgument(fmt::format("there is a layer named \"{}\" already", name));
  }
  const std::string other = nested_with(name, layer_of_name_);
  if (!other.empty()) {
    throw InvalidArgument(
        fmt::format("\"{}\" and \"{}\" cannot both be layers: one would be inside the other", other, name));
  }
  layer_of_name_[name] = size();
  layers_.push_back({name, std::move(build), "", false});
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

LayerChain& LayerChain::tie(const std::string& owner, const std::string& user) {
  ties_.push_back({owner, user});
  return *this;
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
  if (entry.skip_namespace.empty()) return built;
  const auto forward = [inner = std::move(built.forward), name = entry.skip_namespace](Tensors tensors) {
    const SkipNamespace skip_namespace(name);
    return inner(std::move(tensors));
  };
  return {std::move(built.module), forward};
}

}  // namespace gpipe
