// StepInFlight: one mini-batch on its way through a pipeline, from before its forward until after its backward.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/execute/caller_state.h"
#include "gpipe/execute/loss_parts.h"
#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Several may be in flight at a time (a forward before the backward of another), but only one runs at a time.
class StepInFlight {
 public:
  // `loss` empty: the outputs are wanted. The micro-batches are those of the inputs, and `requires_grad` says which of the
  // inputs want a gradient. In training, takes the pipeline's next step number. `has_weights` as in StepSettings.
  StepInFlight(PipelineImpl& pipeline, ReadyBatch batch, StepMode mode, StageLoss loss = {},
               std::function<bool()> has_weights = {});
  ~StepInFlight();
  StepInFlight(const StepInFlight&) = delete;
  StepInFlight& operator=(const StepInFlight&) = delete;

  const Schedule& schedule() const { return assembly_->executor().schedule(); }
  // The pipeline's, for a call that takes this step on.
  CallLock& calls() const { return pipeline_.calls_; }

  // The first forward of a pipeline runs on the assumption that the layers use no skips. If they do, it is taken back, the
  // layers are looked at, and it is run again.
  //
  // A forward that fails gives the step number back.
  Timeline run(Phase phase);

  // Of the last stage, null if it is another rank's: the weighted losses, or the outputs, by micro-batch; before the backward,
  // where there is no loss, the gradients of the outputs.
  Stage* last() { return assembly_->last(); }
  // The gradients of the inputs, over all micro-batches; undefined where there is none. After the backward. On all ranks: where
  // the first stage is, on the devices of the inputs, elsewhere on the CPU.
  Tensors input_grads() const;

  // Those below do nothing in a world of one, and are called by all ranks otherwise.
  // Before a backward of its own.
  void agree_on_backward();
  // After a run: completes the result by what other ranks have of it. Gives the last stage's reason for the step not to
  // count; empty: it does.
  std::string share(StepResult& result, const LossParts& parts = {}, const std::string& refusal = "");
  // After a whole step that must not count: buffers and the step number are as they were, and gradients, if the loss
  // has weights; otherwise they are the caller's affair.
  void take_back();
  // After a whole step whose loss has weights: completes the gradients of this rank's parameters. See EarlierGradients.
  void divide_gradients(double weight);
  // What the rank of the last stage gives, to all of its replica.
  Tensors from_last(Tensors tensors) const;
  // See PipelineImpl.
  template <typename Work>
  auto together(const Work& work) const -> decltype(work()) {
    return pipeline_.together(work);
  }

 private:
  void prepare(const ReadyBatch& batch, StepMode mode);
  Timeline run_here(Phase phase);
  Tensors own_input_grads() const;
  Timeline run_actions(Phase phase);
  Timeline run_without_skips(Phase phase);
  void check_batch_is_unchanged() const;
  // Runs the actions, while the replicas add up the gradients.
  Timeline run_backward(const std::function<Timeline()>& actions);
  void end_listeners();
  // The stages of this rank; none if the assembly is gone.
  std::vector<Stage*> own_stages() const;
  std::vector<StageMemory> measure_memory() const;

  PipelineImpl& pipeline_;
  const CallerState caller_;
  StepSettings settings_;
  std::vector<std::int64_t> batch_versions_;       // of the micro-batches' tensors
  Tensors buffers_before_;                         // those that the forward has changed
  bool counts_ = false;                            // took a step number: in training
  std::chrono::steady_clock::time_point started_;  // the last run
  PipelineImpl::Pool* pool_;                       // the assembly goes back to
  std::unique_ptr<Assembly> assembly_;
};

}  // namespace gpipe
