// Weight names: which layer has the parameter or buffer of a name, whether that layer is built here or not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gpipe/model/layer_chain.h"

namespace gpipe::detail {

// Thread-compatible.
class WeightNames {
 public:
  static constexpr int kNoLayer = -1;

  // Throws InvalidArgument if a part has a weight that another layer has as well, unless it is the user of a tie.
  explicit WeightNames(const LayerChain& chain);

  // Of a tied weight that several parts have under this name, the owner's; kNoLayer if there is none.
  int layer_of(const std::string& name) const;
  // All that have it, users of ties included.
  std::vector<int> layers_of(const std::string& name) const;

 private:
  // The layer that is no part and whose scope the name is in; kNoLayer if there is none.
  int layer_around(const std::string& name) const;

  std::map<std::string, int> layer_of_scope_;
  struct OfParts {
    int owner = kNoLayer;
    std::vector<int> layers;
  };
  std::map<std::string, OfParts> parts_;  // by the names of their weights
};

}  // namespace gpipe::detail
