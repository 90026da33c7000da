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

#include "gpipe/execute/dropped_layers.h"
#include "gpipe/execute/earlier_gradients.h"
#include "gpipe/execute/piece.h"
#include "gpipe/execute/rematerialized_layers.h"
#include "gpipe/model/boundary.h"
#include "gpipe/model/layer.h"
#include "gpipe/model/memory_account.h"
#include "gpipe/model/micro_batch.h"
#include "gpipe/model/module_modes.h"
#include "gpipe/model/skip.h"
#include "gpipe/model/tie.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/transport/packet.h"
#include "gpipe/transport/stage_stream.h"

namespace gpipe {

// What the last stage makes of its outputs: a scalar to start the backward from, already weighted unless the step is
// divided by its weight at the end.
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
  std::function<bool()> has_weights;      // after a call of the loss: see EarlierGradients. Empty: it has none
  // Before those of this replica, see ReadyBatch.
  int first_micro_batch = 0;
  std::int64_t first_sample = 0;
  // May be empty; called by the stage's worker, before it.
  std::function<void(int stage)> on_first_backward;
  std::function<void(int stage)> on_last_backward;
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
  // Which layers, counted from the stage's first, drop their activations whenever the others keep theirs.
  Rematerialization rematerialization;
  // Of the whole model; only for a rematerialization.
  std::vector<SkipProfile> skips;
  // What its memory is booked on; null: it is not measured.
  std::shared_ptr<MemoryAccount> account;
  // Where it computes; null: where its inputs are.
  std::shared_ptr<StageStream> stream;
};

// Confined to its worker during a step; the caller may touch it between steps.
class Stage {
 public:
  using Message = Packet;

  // Throws as RematerializedLayers does.
  explicit Stage(StageParts parts);

  // REQUIRES: `settings` outlives the step.
  void begin_step(const StepSettings& settings);
  // Drops everything kept; also after a failed step. Gradients that are aside are put back.
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
  // Those of before a step whose loss has weights, from its first backward until they are put together with those of
  // the step.
  EarlierGradients& earlier_gradients() { return earlier_gradients_; }
  // The most it held of what other stages sent forward, since the step began; 0 unless its memory is measured.
  std::int64_t most_input_bytes() const { return most_input_bytes_; }

 private:
  // What is kept of a micro-batch.
  struct Kept {
    DroppedLayers::Kept dropped;         // from the forward to the recompute, if there is one
    std::shared_ptr<Boundary> boundary;  // these two, or the pieces, for the backward
    Roots roots;
    RematerializedLayers::Kept pieces;
    std::int64_t input_bytes = 0;  // of what is kept for the recompute, if memory is measured
  };

  bool is_first() const { return parts_.index == 0; }
  bool has_loss() const { return parts_.is_last && settings_->loss; }
  void receive(Packet& packet, int micro_batch) const;
  void bring_here(Tensors& tensors) const;
  Packet packet(int micro_batch, Tensors tensors) const;
  Crossing gather(int micro_batch, std::vector<Packet> inputs) const;
  Crossing run(int micro_batch, const Piece& piece, Crossing entries, bool recomputing);
  void run_layers(int micro_batch, const Piece& piece, Tensors& tensors, bool recomputing);
  // All of the stage. What the backward needs goes to `kept`; nowhere if that is null.
  Crossing run_with_graph(int micro_batch, Crossing entries, bool recomputing, Kept* kept);
  // Whether the backward, with these messages, is of a loss with weights.
  bool is_weighted(const std::vector<Packet>& inputs) const;
  void begin_backward(bool is_weighted);
  // Returns the gradients of what entered.
  Tensors run_backward(int micro_batch, Kept& kept, Tensors grads);
  RematerializedLayers::Run runner(int micro_batch);
  void send(int micro_batch, const Crossing& exits, std::vector<Packet>& outputs);
  void keep_result(int micro_batch, const Tensors& tensors, const std::vector<bool>& requires_grad);

  const StageParts parts_;
  const Piece whole_;
  const StepSettings* settings_ = nullptr;
  std::atomic<const ChainLayer*> at_work_ = nullptr;
  std::string given_;       // to the layer that threw
  std::vector<Kept> kept_;  // by micro-batch
  std::size_t num_backwards_ = 0;
  EarlierGradients earlier_gradients_;
  std::int64_t input_bytes_ = 0;
  std::int64_t most_input_bytes_ = 0;
  ModuleModes modes_;
  DroppedLayers dropped_;                                 // all of the stage, when it is recomputed
  std::unique_ptr<RematerializedLayers> rematerialized_;  // null: its activations are kept
  std::map<int, Tensors> tied_grads_;                     // by the stage they came from
  std::vector<Tensors> results_;
  std::vector<bool> result_requires_grad_;
  std::vector<Tensors> output_grads_;
  std::vector<Tensors> input_grads_;
};

}  // namespace gpipe
