// Stage: consecutive layers run together, and what they keep of each micro-batch between forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/model/layer.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe {

// One message of a flow. The receiver checks that it is the one it waits for.
struct Packet {
  std::int64_t step = -1;
  int micro_batch = -1;
  Tensors tensors;
  std::vector<bool> requires_grad;  // which of them the receiver sends a gradient back for; empty in a gradient message
};

// What the last stage makes of its outputs: a scalar to start the backward from, already weighted.
using StageLoss = std::function<at::Tensor(int micro_batch, const Tensors& outputs)>;

// What is the same for all stages during one step. Set before the step, read by the workers.
struct StepSettings {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool with_grad = true;
  std::vector<MicroBatch> micro_batches;  // the first stage's inputs
  std::vector<bool> input_requires_grad;  // of each input tensor
  StageLoss loss;                         // empty: the outputs themselves are wanted
};

struct StageLayer {
  int index = 0;  // in the chain
  std::string name;
  Layer layer;
};

// Confined to its worker during a step; the caller may touch it between steps.
class Stage {
 public:
  using Message = Packet;

  // `recomputed(micro_batch)` says which forwards keep only their input.
  Stage(std::vector<StageLayer> layers, bool is_first, bool is_last, std::function<bool(int)> recomputed);

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  // Drops everything kept; also after a failed step.
  void end_step();

  void forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void recompute(int micro_batch);
  void backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);

  // The layer at work: "layer 3 (relu)". Empty outside a layer.
  std::string where() const;

  const std::vector<StageLayer>& layers() const { return layers_; }
  // Of the last stage, after its forward: the weighted loss, or the outputs, detached, by micro-batch.
  const std::vector<Tensors>& results() const { return results_; }
  // Of the last stage without a loss: the gradients of its outputs, set before the backward, by micro-batch.
  void set_output_grads(std::vector<Tensors> grads) { output_grads_ = std::move(grads); }
  // Of the first stage, after its backward: the gradients of its inputs, by micro-batch.
  const std::vector<Tensors>& input_grads() const { return input_grads_; }

 private:
  // What is kept of a micro-batch.
  struct Kept {
    Tensors inputs;   // leaves of this stage's graph
    Tensors outputs;  // its roots; empty until they are (re)computed with gradient
  };

  Tensors run(int micro_batch, Tensors tensors, bool recomputing);
  Tensors roots(int micro_batch, const Tensors& outputs) const;
  void check(const Packet& packet, int micro_batch) const;

  const std::vector<StageLayer> layers_;
  const bool is_first_;
  const bool is_last_;
  const std::function<bool(int)> recomputed_;
  const StepSettings* settings_ = nullptr;
  const StageLayer* at_work_ = nullptr;
  std::vector<Kept> kept_;                  // by micro-batch
  std::vector<bool> output_requires_grad_;  // learnt from the step's first forward
  std::vector<Tensors> results_;
  std::vector<Tensors> output_grads_;
  std::vector<Tensors> input_grads_;
};

}  // namespace gpipe
