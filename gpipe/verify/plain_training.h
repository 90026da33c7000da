// PlainTraining: the steps of a pipeline without a pipeline, which it is compared with.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/execute/model/model.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/record/run_recorder.h"
#include "gpipe/execute/step/loss_check.h"
#include "gpipe/interpret/workers.h"
#include "gpipe/model/layer_chain.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

// Gradient accumulation as anybody would write it: micro-batch after micro-batch, the layers one after the other in one
// thread, one backward through the whole graph. It knows neither stages nor schedules nor recompute.
//
// Thread-compatible.
class PlainTraining {
 public:
  // Of `options`, micro-batches, replicated inputs, loss reduction, seed and threads of a stage count.
  PlainTraining(const LayerChain& chain, const PipelineOptions& options, std::shared_ptr<RunRecorder> recorder);
  // Records the last weights, and separates tied ones.
  ~PlainTraining();
  PlainTraining(const PlainTraining&) = delete;
  PlainTraining& operator=(const PlainTraining&) = delete;

  std::vector<at::Tensor> parameters() const { return face_.parameters(); }
  const std::vector<ChainLayer>& layers() const { return model_.layers(); }
  // Makes the gradients of a mini-batch. REQUIRES: those of the parameters are undefined.
  void train_step(const Tensors& inputs, const Tensors& targets, const PipelineImpl::Loss& loss);

 private:
  struct Step;
  void run_step(const PipelineImpl::Loss& loss, Step& step);
  void run_micro_batch(const PipelineImpl::Loss& loss, int micro_batch, Step& step);
  Tensors run_layers(Tensors tensors, LayerRun& run, StepRecorder* recorder) const;
  void add_tied_grads() const;
  RecordedLayers recorded_layers() const;

  const PipelineOptions options_;
  torch::nn::Module face_;
  Model model_;
  Workers workers_;  // one thread, as a stage has
  const std::shared_ptr<RunRecorder> recorder_;
  std::int64_t num_steps_ = 0;
};

}  // namespace gpipe::detail
