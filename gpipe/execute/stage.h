// Stage: consecutive layers run together, and what they keep of each micro-batch between forward and backward.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/execute/kept_inputs.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/changing_buffers.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/module_modes.h"
#include "gpipe/model/skip.h"
#include "gpipe/model/tie.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe {

// One message of a flow. The receiver checks that it is the one it waits for.
struct Packet {
  std::int64_t step = -1;
  int micro_batch = -1;
  Tensors tensors;
  std::vector<bool> requires_grad;  // which of them the receiver sends a gradient back for; empty in a gradient message
  std::vector<std::int64_t> versions;  // of stashed tensors only
  std::shared_ptr<c10::Event> ready;   // the tensors may be read after it; null on CPU
};

// What the last stage makes of its outputs: a scalar to start the backward from, already weighted.
using StageLoss = std::function<at::Tensor(int micro_batch, const Tensors& outputs)>;

// What is the same for all stages during one step. Set before the step, read by the workers.
struct StepSettings {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool with_grad = true;
  bool knows_skips = true;                // false: the layers must not use any; see NoSkipsYet
  std::vector<MicroBatch> micro_batches;  // the first stage's inputs
  std::vector<bool> input_requires_grad;  // of each input tensor
  StageLoss loss;                         // empty: the outputs themselves are wanted
};

// What a stage is, as long as the partition stands.
struct StageParts {
  int index = 0;
  bool is_last = false;
  std::vector<ChainLayer> layers;
  // The names each skip flow carries, in the order of the stage's flows.
  std::vector<std::vector<std::string>> skips_in;
  std::vector<std::vector<std::string>> skips_out;
  // The weights whose gradients each tie flow carries, in the order of the stage's flows.
  std::vector<Tensors> ties_out;
  std::vector<OwnedTie> ties_owned;
  // Which forwards keep only their inputs, by micro-batch.
  std::vector<bool> recomputed;
  // What its memory is booked on; null: it is not measured.
  std::shared_ptr<MemoryAccount> account;
  // Where it computes; null: where its inputs are.
  std::shared_ptr<StageStream> stream;
};

// Confined to its worker during a step; the caller may touch it between steps.
class Stage {
 public:
  using Message = Packet;

  explicit Stage(StageParts parts)
      : parts_(std::move(parts)), modes_(parts_.layers), keeper_(parts_.index), buffers_(parts_.layers) {}

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  // Drops everything kept; also after a failed step.
  void end_step();
  // Orders the step between what the caller has enqueued on the stage's device before it and will enqueue after it.
  void follow_caller() const;
  void lead_caller() const;

  // See Executor.
  void forward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void recompute(int micro_batch);
  void backward(int micro_batch, std::vector<Packet> inputs, std::vector<Packet>& outputs);
  void give_tied(std::vector<Packet>& outputs);
  void take_tied(int source, Packet input);
  void settle();

  // The layer at work: "layer 3 (relu)". Empty outside a layer. Thread-safe.
  std::string where() const;
  // After a throw: the same, with what the layer was given.
  std::string failed_at() const;

  const std::vector<ChainLayer>& layers() const { return parts_.layers; }
  // Of the last stage, after its forward: the weighted loss, or the outputs, detached, by micro-batch.
  const std::vector<Tensors>& results() const { return results_; }
  std::vector<Tensors> take_results() { return std::move(results_); }
  // Whether that result needs a gradient in any micro-batch.
  const std::vector<bool>& result_requires_grad() const { return result_requires_grad_; }
  // Of the last stage without a loss: the gradients of its outputs, set before the backward, by micro-batch.
  void set_output_grads(std::vector<Tensors> grads) { output_grads_ = std::move(grads); }
  // Of the first stage, after its backward: the gradients of its inputs, by micro-batch.
  const std::vector<Tensors>& input_grads() const { return input_grads_; }
  // The most it held of what other stages sent forward, since the step began; 0 unless its memory is measured.
  std::int64_t most_input_bytes() const { return most_input_bytes_; }

 private:
  // What enters the stage: the previous stage's outputs, then what was stashed before it and is popped in it.
  struct Entries {
    Tensors tensors;
    std::vector<bool> requires_grad;
    std::vector<std::int64_t> versions;  // of the stashed ones
    std::size_t num_inputs = 0;
  };
  // What leaves it: its outputs or its loss, then what it stashes for later stages.
  struct Exits {
    Tensors tensors;
    std::vector<std::int64_t> versions;
    std::size_t num_outputs = 0;
  };
  // What is kept of a micro-batch.
  struct Kept {
    Entries entries;  // these three if they are needed for a recompute
    std::vector<std::int64_t> versions;
    Tensors buffers;
    std::shared_ptr<Boundary> boundary;
    Roots roots;
    std::int64_t input_bytes = 0;  // of `entries`, if memory is measured
  };

  bool is_first() const { return parts_.index == 0; }
  bool has_loss() const { return parts_.is_last && settings_->loss; }
  void receive(Packet& packet, int micro_batch) const;
  void bring_here(Tensors& tensors) const;
  Packet packet(int micro_batch, Tensors tensors) const;
  Entries gather(int micro_batch, std::vector<Packet> inputs) const;
  Exits run(int micro_batch, const Entries& entries, bool recomputing);
  void run_layers(int micro_batch, Tensors& tensors, bool recomputing);
  void send(int micro_batch, const Exits& exits, std::vector<Packet>& outputs);
  void keep_result(int micro_batch, const Tensors& tensors, const std::vector<bool>& requires_grad);

  const StageParts parts_;
  const StepSettings* settings_ = nullptr;
  std::atomic<const ChainLayer*> at_work_ = nullptr;
  std::string given_;       // to the layer that threw
  std::vector<Kept> kept_;  // by micro-batch
  std::int64_t input_bytes_ = 0;
  std::int64_t most_input_bytes_ = 0;
  ModuleModes modes_;
  InputKeeper keeper_;
  ChangingBuffers buffers_;
  std::map<int, Tensors> tied_grads_;  // by the stage they came from
  std::vector<Tensors> results_;
  std::vector<bool> result_requires_grad_;
  std::vector<Tensors> output_grads_;
  std::vector<Tensors> input_grads_;
};

}  // namespace gpipe
