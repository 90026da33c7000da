// Step: one mini-batch on its way through a pipeline. A transaction: it happens as a whole, or nothing of it stays.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/execute/engine/engine.h"
#include "gpipe/execute/group/loss_parts.h"
#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/execute/values/step_result.h"

namespace gpipe::detail {

// What the last stage makes of its outputs. Empty: the outputs are wanted.
struct StepLoss {
  StageLoss call;
  std::function<bool()> has_weights;  // as in StepSettings
  bool is_checked = false;            // whether the gradients may have to be put back
  // What the loss is called with besides the outputs: brought to the device of the last stage, once, before that.
  std::vector<MicroBatch>* targets = nullptr;
};

// Begins in the constructor, which takes the next step number in training and an assembly; commits when a forward, or a
// whole step, has run; and rolls back when that fails: buffers, step number and listeners are then as before, and so
// are gradients if the loss has weights or is checked.
//
// Several may be in flight at a time (a forward before the backward of another), but only one runs at a time.
class Step {
 public:
  // REQUIRES: the engine outlives it.
  Step(Engine& engine, MiniBatch batch, StepMode mode, StepLoss loss = {});

  const Schedule& schedule() const { return assembly_->schedule(); }
  Engine& engine() const { return engine_; }

  Timeline run(Phase phase);
  // After a whole step that must not count.
  void roll_back();

  // Of the last stage, null if it is another rank's: the scaled losses, or the outputs, by micro-batch; before the
  // backward, where there is no loss, the gradients of the outputs.
  Stage* last() const { return assembly_->last(); }
  // The gradients of the inputs, over all micro-batches; undefined where there is none. After the backward. On all
  // ranks: where the first stage is, on the devices of the inputs, elsewhere on the CPU.
  Tensors input_grads() const;
  // After a whole step whose loss has weights: completes the gradients of this rank's parameters. See EarlierGradients.
  void divide_gradients(double weight);

  // Null if the step is not recorded.
  StepRecorder* recorder() const { return settings_.recorder.get(); }
  // After a whole step, or a backward: it is complete.
  void finish_recording(const at::Tensor& loss, const Tensors& input_grads);

  // Those below are called by all ranks.
  // Before a backward of its own.
  void agree_on_backward();
  // After a run: completes the result by what other ranks have of it. Gives the last stage's reason for the step not to
  // count; empty: it does.
  std::string share(StepResult& result, const LossParts& parts = {}, const std::string& refusal = "");
  // What the rank of the last stage gives, to all of its replica.
  Tensors from_last(Tensors tensors) const;

 private:
  void begin(MiniBatch& batch, StepMode mode);
  // To stages on devices: what the caller has given may be elsewhere, and not be whole yet.
  void take_given();
  // The errors of a step that has failed, and of putting back what it has done, are one: the first.
  void undo_failed_run();
  void commit();
  Timeline run_actions(Phase phase);
  // The same, while the replicas add up the gradients.
  Timeline run_and_sum_gradients(Phase phase);
  void check_batch_is_unchanged() const;
  // With what the layers of other replicas have kept.
  void end_listeners();
  std::vector<StageMemory> measure_memory() const;
  Tensors own_input_grads() const;

  Engine& engine_;
  const CallerState caller_;
  StepSettings settings_;
  std::vector<MicroBatch>* const targets_;
  std::vector<std::int64_t> batch_versions_;  // of the micro-batches' tensors
  BufferCopies buffers_before_;               // those that the forward has changed
  // Parameters and copies of their gradients, undefined where there was none; if the loss is checked.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_before_;
  bool has_number_ = false;                        // took a step number: in training
  std::chrono::steady_clock::time_point started_;  // of the last run
  Runner::Lease assembly_;
};

}  // namespace gpipe::detail
