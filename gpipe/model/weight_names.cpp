#include "gpipe/model/weight_names.h"

#include <fmt/format.h>

#include "gpipe/error.h"

namespace gpipe::detail {

WeightNames::WeightNames(const LayerChain& chain) {
  for (int layer = 0; layer < chain.size(); ++layer) {
    if (!chain.is_part(layer)) layer_of_scope_[chain.name(layer)] = layer;
  }
  for (int layer = 0; layer < chain.size(); ++layer) {
    for (const std::string& name : chain.weight_names(layer)) {
      const int around = layer_around(name);
      if (around != kNoLayer) {
        throw InvalidArgument(
            fmt::format("\"{}\" of the part \"{}\" would be inside the layer \"{}\"; give that layer "
                        "another name, or add it as a part, too",
                        name, chain.name(layer), chain.name(around)));
      }
      OfParts& parts = parts_[name];
      parts.layers.push_back(layer);
      if (chain.is_tied_user(layer, name)) continue;
      if (parts.owner != kNoLayer) {
        throw InvalidArgument(fmt::format(
            "the parts \"{0}\" and \"{1}\" both have \"{2}\"; if it is one parameter that both use, give each a tensor "
            "of its own and tie them: tie({{\"{0}\", \"{2}\"}}, {{\"{1}\", \"{2}\"}}); a buffer can be in one layer "
            "only",
            chain.name(parts.owner), chain.name(layer), name));
      }
      parts.owner = layer;
    }
  }
}

int WeightNames::layer_of(const std::string& name) const {
  const auto found = parts_.find(name);
  return found != parts_.end() ? found->second.owner : layer_around(name);
}

std::vector<int> WeightNames::layers_of(const std::string& name) const {
  const auto found = parts_.find(name);
  if (found != parts_.end()) return found->second.layers;
  const int layer = layer_around(name);
  return layer == kNoLayer ? std::vector<int>() : std::vector<int>{layer};
}

int WeightNames::layer_around(const std::string& name) const {
  for (std::size_t dot = name.find('.');; dot = name.find('.', dot + 1)) {
    const auto found = layer_of_scope_.find(name.substr(0, dot));
    if (found != layer_of_scope_.end()) return found->second;
    if (dot == std::string::npos) return kNoLayer;
  }
}

}  // namespace gpipe::detail
