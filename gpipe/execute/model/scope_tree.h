// ScopeTree: the tree of modules that the names of all layers and weights spell, and what of it is in this process.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/weight_names.h"

namespace gpipe::detail {

// Note [One tree of modules]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// A layer "layer1.0.conv1" is the child conv1 of the child 0 of the child layer1, as if modules were nested that way. A
// part brings a tree of its own, which begins at the root, and parts overlap:
//
//     part "a":  layer1 { norm, conv { weight } }                layer1 { norm, conv { weight, bias } }
//     part "b":  layer1 {       conv { bias }, relu }    ---->            |            |
//                                                                   module of "a"    a merged scope
//
// Where one layer alone has a module, that module itself is in the tree. A merged scope stands for the modules that
// several parts have at one place: it has their very tensors, and switches them to training or evaluation with itself.
//
// The order of the tree depends on names alone, so that it is the same on every rank, whichever layers are built there.
//
// Thread-compatible.
class ScopeTree {
 public:
  ScopeTree(const LayerChain& chain, const WeightNames& names);

  // Where a weight stands in the order in which a module lists them that has all layers. Those of a layer that is no
  // part stand at one place, in the layer's own order; num_places() for a name that is not known.
  int place_of(int layer, const std::string& weight_name) const;
  int num_places() const { return num_places_; }

  // Makes the layers children of `face`, and parameters and buffers that parts have at the root its own, instead of
  // what it had. `layers` are those that are built.
  void register_in(torch::nn::Module& face, const std::vector<ChainLayer>& layers) const;

 private:
  struct Scope {
    std::string name;
    int layer = WeightNames::kNoLayer;                             // that is here and is no part
    std::vector<std::string> weights = {};                         // full names, of parts
    std::vector<std::shared_ptr<torch::nn::Module>> modules = {};  // only while they are registered
    std::vector<Scope> children = {};                              // in the order of their first appearance

    Scope& child(const std::string& child_name);
    // The scope of that path, "layer1.0", from here.
    Scope& at(const std::string& path);
    bool has_modules() const;
  };

  void number(const Scope& scope);
  static void fill(torch::nn::Module& module, Scope& scope);

  Scope root_;
  int num_places_ = 0;
  std::vector<int> place_of_layer_;  // -1 for parts
  std::map<std::string, int> place_of_weight_;
};

}  // namespace gpipe::detail
