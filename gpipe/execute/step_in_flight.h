// StepInFlight: one mini-batch on its way through a pipeline, from before its forward until after its backward.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/execute/caller_state.h"
#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Several may be in flight at a time (a forward before the backward of another), but only one runs at a time.
class StepInFlight {
 public:
  // `loss` empty: the outputs are wanted. The micro-batches are those of the inputs, and `requires_grad` says which of the
  // inputs want a gradient. In training, takes the pipeline's next step number.
  StepInFlight(PipelineImpl& pipeline, std::vector<MicroBatch> micro_batches, std::vector<bool> requires_grad,
               StepMode mode, StageLoss loss = {});
  ~StepInFlight();
  StepInFlight(const StepInFlight&) = delete;
  StepInFlight& operator=(const StepInFlight&) = delete;

  const Schedule& schedule() const { return assembly_->executor().schedule(); }

  // The first forward of a pipeline runs on the assumption that the layers use no skips. If they do, it is taken back, the
  // layers are looked at, and it is run again.
  //
  // A forward that fails gives the step number back.
  Timeline run(Phase phase);

  // The weighted losses, or the outputs, by micro-batch.
  const std::vector<Tensors>& results() const { return assembly_->last().results(); }
  std::vector<Tensors> take_results() { return assembly_->last().take_results(); }
  const std::vector<bool>& result_requires_grad() const { return assembly_->last().result_requires_grad(); }
  // Before the backward, where there is no loss.
  void set_output_grads(std::vector<Tensors> grads) { assembly_->last().set_output_grads(std::move(grads)); }
  // The gradients of the inputs, over all micro-batches; undefined where there is none. After the backward.
  Tensors input_grads() const;

 private:
  Timeline run_actions(Phase phase);
  Timeline run_without_skips(Phase phase);
  void check_batch_is_unchanged() const;

  PipelineImpl& pipeline_;
  const CallerState caller_;
  StepSettings settings_;
  std::vector<std::int64_t> batch_versions_;  // of the micro-batches' tensors
  bool counts_ = false;                       // took a step number: in training
  PipelineImpl::Pool* pool_;                  // the assembly goes back to
  std::unique_ptr<Assembly> assembly_;
};

}  // namespace gpipe
