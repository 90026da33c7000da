// StepSettings: what is the same for all stages during one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpipe/execute/record/step_recorder.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe::detail {

// What the last stage makes of its outputs: a scalar to start the backward from. It is scaled as LossReduction
// says, unless the loss has weights: then the gradients are divided by their sum at the end.
using StageLoss = std::function<at::Tensor(int micro_batch, const Tensors& outputs)>;

// Set before the step, read by the workers.
struct StepSettings {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool with_grad = true;
  std::vector<MicroBatch> micro_batches;  // the first stage's inputs
  std::vector<bool> input_requires_grad;  // of each input tensor
  CallerPoints given;                     // after which the caller's tensors may be read, if stages are on devices
  StageLoss loss;                         // empty: the outputs themselves are wanted
  std::function<bool()> has_weights;      // after a call of the loss: see EarlierGradients. Empty: it has none
  // Those of the replicas before this one, see MiniBatch.
  int first_micro_batch = 0;
  std::int64_t first_sample = 0;
  // May be empty. Called by the stage's worker right before its first backward or input gradient, and before the last
  // action that adds to its gradients.
  std::function<void(int stage)> on_first_backward;
  std::function<void(int stage)> on_last_backward;
  // The optimizer step of a stage; empty: none in this step.
  std::function<void(int stage)> update;
  // Writes down what the step does; null: nobody wants to know.
  std::shared_ptr<StepRecorder> recorder;
};

}  // namespace gpipe::detail
