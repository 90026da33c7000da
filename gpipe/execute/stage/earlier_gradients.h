// EarlierGradients: what the parameters of a stage had as gradients before a step whose gradients are accumulated
// apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/model/layer.h"

namespace gpipe::detail {

// Note [Gradients of a weighted loss]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The weight of a mini-batch is known only when the last forward is over, and some schedules run backwards before that.
// So each backward starts from the micro-batch's sum as it is, and the gradients of the step are accumulated apart from
// what .grad held before, which is moved aside without a copy. At the end of the step, behind the ties and the
// replicas, each gradient of the step is divided by the weight of the whole mini-batch, once, and added to the earlier
// one, which stays the same tensor. That is what this loop does, and the bits are those of it:
//
//   for (i : micro_batches) sum_i.backward();   // from gradients that are undefined
//   grad = earlier + grad / (weight_0 + weight_1 + ...);
//
// A stage learns whether the loss has weights from the gradient that it receives first: see Packet::loss_has_weights.
//
// Confined to the stage's worker during a step; the caller's between steps.
class EarlierGradients {
 public:
  // Moves the gradients of the layers' parameters aside. REQUIRES: none are aside.
  void set_aside(const std::vector<ChainLayer>& layers);

  bool are_aside() const { return !items_.empty(); }
  // The bytes of the gradients that are aside, and stay there until the gradients of the step are added to them.
  std::int64_t bytes() const;
  // The bytes of the gradients of the step, which are given back when that is done.
  std::int64_t bytes_of_step() const;

  // Divides the gradients of the step by `weight` and adds them to the earlier ones; for a weight of 0 they are
  // dropped. Then none is aside any more.
  void add_step(double weight);
  // Drops the gradients of the step instead: all are as before it.
  void put_back();

 private:
  struct Item {
    at::Tensor parameter;
    at::Tensor earlier;  // undefined: it had none
  };
  std::vector<Item> items_;
};

}  // namespace gpipe::detail
