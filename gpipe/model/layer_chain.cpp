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

bool is_inside(const std::string& name, const std::string& outer) {
  return name.size() > outer.size() && name[outer.size()] == '.' && name.compare(0, outer.size(), outer) == 0;
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
  for (const Entry& layer : layers_) {
    if (layer.name == name) throw InvalidArgument(fmt::format("there is a layer named \"{}\" already", name));
    if (is_inside(name, layer.name) || is_inside(layer.name, name)) {
      throw InvalidArgument(
          fmt::format("\"{}\" and \"{}\" cannot both be layers: one would be inside the other", layer.name, name));
    }
  }
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
  for (Entry& entry : layers_) {
    if (entry.name != layer) continue;
    entry.skip_namespace = skip_namespace;
    return *this;
  }
  throw InvalidArgument(fmt::format("there is no layer named \"{}\" whose skips could be isolated", layer));
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
