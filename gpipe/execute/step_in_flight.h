// StepInFlight: one mini-batch on its way through a pipeline, from before its forward until after its backward.
#pragma once

#include <memory>
#include <vector>

#include "gpipe/execute/pipeline.h"

namespace gpipe {

// Several may be in flight at a time (a forward before the backward of another), but only one runs at a time.
class StepInFlight {
 public:
  // `loss` empty: the outputs are wanted. Throws InvalidArgument for a batch that cannot be split.
  StepInFlight(PipelineImpl& pipeline, const Tensors& inputs, bool with_grad, StageLoss loss = {});

  const std::vector<MicroBatch>& micro_batches() const { return settings_.micro_batches; }
  std::int64_t num_samples() const;

  Timeline run(Phase phase);

  // The weighted losses, or the outputs, by micro-batch.
  const std::vector<Tensors>& results() const { return stages_.back()->results(); }
  // Before the backward, where there is no loss.
  void set_output_grads(std::vector<Tensors> grads) { stages_.back()->set_output_grads(std::move(grads)); }
  const std::vector<Tensors>& input_grads() const { return stages_.front()->input_grads(); }

 private:
  PipelineImpl& pipeline_;
  StepSettings settings_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Executor<Stage>> executor_;
};

}  // namespace gpipe
