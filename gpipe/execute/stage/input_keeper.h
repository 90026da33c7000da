// The inputs of layers that will be run again: kept as they were, though layers may change them in place.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// How often each was changed in place; 0 for undefined ones.
std::vector<std::int64_t> versions_of(const Tensors& tensors);

// In the same layout, without history: in another one kernels may add up in another order.
at::Tensor copy_of(const at::Tensor& tensor);

// Note [Inputs changed in place]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A recompute needs its inputs as they were, but a stage, or a run of layers in it, that begins with, say,
// ReLU(inplace) changes them. Which ones it changes is learnt from its very first forward, which works with copies at
// hand; from then on only those are copied. Forwards that are not recomputed change their inputs as they would in a
// plain model.
//
// Confined to its worker.
class InputKeeper {
 public:
  // `name` is for messages: "stage 1", "layers 2-4".
  explicit InputKeeper(std::string name) : name_(std::move(name)) {}

  // The layers may do something else from now on.
  void forget();

  struct Before {
    Tensors copies;
    std::vector<std::int64_t> versions;
  };
  // Before a forward.
  Before copy(const Tensors& inputs) const;
  // After it: puts copies in the place of inputs that were changed, and tells which. Throws InvalidArgument for a
  // change that was not to be expected.
  std::vector<bool> put_back(Tensors& inputs, Before before);

  // Throws InvalidArgument if others have changed the inputs since they had these versions: a layer can pass its input
  // on, so that it is in the hands of later ones, too.
  void check_unchanged(const Tensors& inputs, const std::vector<std::int64_t>& versions) const;

 private:
  std::string name_;
  bool knows_overwritten_ = false;
  std::vector<bool> overwritten_;  // by the layers, at least once
};

}  // namespace gpipe::detail
