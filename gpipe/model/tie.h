// Tied weights: one weight that several layers use. It is updated once, with the sum of their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/layer_chain.h"

namespace gpipe::detail {

// Note [Tied weights]
// ~~~~~~~~~~~~~~~~~~~
// Each layer that uses a tied weight has a tensor of its own for it, in the same memory, with its own gradient. All but
// the owner's are taken out of their modules' parameters, so an optimizer sees one weight. Each collects the gradients
// of its layer over the micro-batches; at the end of the step the owner's gradient gets theirs added, in the order of
// the layers. So the sum is the same however the layers are split, and one message a step goes from a stage to the
// owner's.
struct Tie {
  struct Use {
    int layer = 0;
    at::Tensor weight;
    std::shared_ptr<torch::nn::Module>
        module;       // that has it; null, as the weight is, if another process runs the layer
    std::string key;  // in the module
  };
  Use owner;
  std::vector<Use> users;  // in the order of the layers
};

// Binds the chain's ties in its layers; those whose module is null are of other processes. Throws InvalidArgument,
// before anything is changed, for a name that no layer or more than one has, parameters of different shapes or types,
// and a parameter tied to itself or to two owners; and as WeightNames does.
std::vector<Tie> bind_ties(const LayerChain& chain, const std::vector<Layer>& layers);

// Makes the users parameters of their modules again, with memory of their own.
void untie(const Tie& tie);

// The layers that are not this process's own are let go, with what they hold of the tie.
void keep_own(Tie& tie, const std::function<bool(int layer)>& is_own);

// Points the users' memory at their owner's again, where a cast or a load has given the owner other memory.
void relink(const Tie& tie);

// The users' gradients are parts of a sum that is made at the end of a step; outside a step there are none.
void forget_user_grads(const Tie& tie);

// A tie as the stage of its owner sees it.
struct OwnedTie {
  at::Tensor weight;
  struct Part {
    at::Tensor local;  // the user's weight, if it is in the same stage
    int source = -1;   // else the stage its gradient comes from, and its place in the message
    int index = 0;
  };
  std::vector<Part> parts;  // in the order of the layers
};

// Throws InvalidArgument if two layers hold the very same parameter or buffer: threads would race for it.
void check_not_shared(const LayerChain& chain, const std::vector<Layer>& layers);

}  // namespace gpipe::detail
