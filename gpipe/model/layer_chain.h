// LayerChain: the model as a list of layers that are built only where they are needed.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/tie.h"

namespace gpipe {

// Adding a layer stores its constructor call; `build` makes it, in a random stream that is a function of (seed, name): the
// initial weights do not depend on the partition, nor on which layers were built before.
//
// Thread-compatible.
class LayerChain {
 public:
  LayerChain() = default;
  // The layers of a model that is built already, with its names. They stay shared with it.
  LayerChain(const torch::nn::Sequential& model);  // NOLINT(google-explicit-constructor)

  // `Holder` is a module holder such as torch::nn::Linear; its constructor gets `args` when the layer is built. A name may
  // have several parts, "layer1.0.conv1": then the layer's parameters are called as if modules were nested that way. Throws
  // InvalidArgument if a part is empty, or if the name is taken or inside one that is.
  template <typename Holder, typename... Args>
  LayerChain& add(const std::string& name, Args... args) {
    using Module = typename Holder::ContainedType;
    return add_layer(name, [args = std::make_tuple(std::move(args)...)] {
      return make_layer(
          std::apply([](const auto&... arg) { return Holder(std::make_shared<Module>(arg...)).ptr(); }, args));
    });
  }

  // Two parameters become one: `user` takes the values and the memory of `owner`, is no longer a parameter of its own, and
  // its gradients are added to the owner's. Names are those of the model: tie("embedding.weight", "head.weight"). They are
  // checked when the pipeline is made.
  LayerChain& tie(const std::string& owner, const std::string& user);
  const std::vector<TieNames>& ties() const { return ties_; }

  // The skips of the layer are in a namespace (see SkipNamespace): layers of the same one share their names.
  LayerChain& isolate(const std::string& layer, const std::string& skip_namespace);

  int size() const { return static_cast<int>(layers_.size()); }
  const std::string& name(int layer) const { return layers_[layer].name; }
  Layer build(int layer, std::uint64_t seed) const;
  // Whether it was there before, as those of a Sequential: then `build` costs nothing.
  bool is_built(int layer) const { return layers_[layer].is_built; }

 private:
  LayerChain& add_layer(const std::string& name, std::function<Layer()> build);

  struct Entry {
    std::string name;
    std::function<Layer()> build;
    std::string skip_namespace;
    bool is_built = false;
  };
  std::vector<Entry> layers_;
  std::vector<TieNames> ties_;
};

}  // namespace gpipe
