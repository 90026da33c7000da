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

}  // namespace

LayerChain::LayerChain(const torch::nn::Sequential& model) {
  const auto children = model->named_children();
  std::size_t index = 0;
  for (auto module = model->begin(); module != model->end(); ++module, ++index) {
    add_layer(children[index].key(), [shared = make_layer(*module)] { return shared; });
  }
}

LayerChain& LayerChain::add_layer(const std::string& name, std::function<Layer()> build) {
  if (name.empty() || name.find('.') != std::string::npos) {
    throw InvalidArgument(fmt::format("\"{}\" cannot be a layer's name; it must not be empty nor hold a dot", name));
  }
  for (const Entry& layer : layers_) {
    if (layer.name == name) throw InvalidArgument(fmt::format("there is a layer named \"{}\" already", name));
  }
  layers_.push_back({name, std::move(build), ""});
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
