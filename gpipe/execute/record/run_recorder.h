// RunRecorder: the recording of one pipeline, or of a plain loop over its layers, step by step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "gpipe/execute/record/step_recorder.h"

namespace gpipe::detail {

// Thread-compatible.
class RunRecorder {
 public:
  // Gets what has been recorded since, and whether that completes the step `num_steps` - 1.
  using Take = std::function<void(Recording added, bool completes_step)>;

  RunRecorder(const RecordSettings& settings, Take take) : settings_(settings), take_(std::move(take)) {}

  // Whether enough steps are recorded.
  bool is_done() const { return next_step_ > settings_.num_steps; }
  // Before a step with a backward. Null if enough steps are recorded. The last steps' weights are those that the next
  // one finds.
  std::shared_ptr<StepRecorder> begin_step(const RecordedLayers& layers, const Tensors& inputs);
  // The last weights. REQUIRES: nothing of the training comes any more.
  void end(const RecordedLayers& layers);

 private:
  const RecordSettings settings_;
  const Take take_;
  std::int64_t next_step_ = 0;
};

}  // namespace gpipe::detail
