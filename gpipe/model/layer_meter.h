// Layer meter: runs one layer forward and backward, as a stage would, and measures what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/model/deferred_weights.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

struct LayerSeconds {
  double forward = 0;
  double backward = 0;
  double input_grad = 0;
};

// A tensor that goes into a layer or comes out of it.
struct TensorUse {
  std::int64_t bytes = 0;
  bool kept = false;    // for the backward, or its second part, by the layer's graph
  int same_input = -1;  // of an output: the input in whose memory it is; -1 if it has memory of its own
};

struct LayerBytes {
  std::vector<TensorUse> inputs;
  std::vector<TensorUse> outputs;
  // For the backward; if that is split, for its weight gradient. The inputs and outputs that are kept are included.
  std::int64_t kept = 0;
  // The most during forward and during backward, inputs and outputs included. If the backward is split, that of its
  // input gradient, and of its weight gradient for the backward.
  std::int64_t forward_working = 0;
  std::int64_t input_grad_working = 0;
  std::int64_t backward_working = 0;
};

struct LayerMeasure {
  LayerSeconds seconds;
  LayerBytes bytes;
  Tensors outputs;  // without history, with the requires_grad they had
};

// What is run: takes inputs, gives outputs.
using MeteredForward = std::function<Tensors(Tensors)>;
// Further outputs of the same run, such as stashed tensors, asked for after the forward; may be empty.
using MoreRoots = std::function<Tensors()>;

struct LayerMeter {
  // Without an account bytes are not counted.
  std::shared_ptr<MemoryAccount> account;
  // Whether a backward to the inputs alone is measured, before the whole one.
  bool with_input_grad = false;
  // Runs the backward in two parts: see Note [Split backward]. Its seconds are not measured then.
  std::optional<DeferredWeights> deferred_weights;
  // What seconds are read from; empty: the processor time of this thread.
  std::function<double()> clock;
  // Called between forward and backward.
  std::function<void()> at_backward;

  // Gradients of `parameters` are put aside and back; the backward adds to zeros, as that of every micro-batch but the
  // first.
  LayerMeasure run(const MeteredForward& forward, const MoreRoots& more_roots, Tensors inputs,
                   const Tensors& parameters) const;

 private:
  std::int64_t live_bytes() const { return account != nullptr ? account->live_bytes() : 0; }
  std::int64_t peak_bytes() const { return account != nullptr ? account->peak_bytes() : 0; }
  void reset_peak() const;
  double now() const;
};

}  // namespace gpipe::detail
