#include "gpipe/model/layer_chain.h"

#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/model/layer_scope.h"

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
  layers_.push_back({name, std::move(build)});
  return *this;
}

Layer LayerChain::build(int layer, std::uint64_t seed) const {
  LayerRun run;
  run.seed = seed ^ hash(layers_[layer].name);
  const LayerScope scope(run);
  return layers_[layer].build();
}

}  // namespace gpipe
