#include "gpipe/execute/record/run_recorder.h"

#include <utility>

namespace gpipe::detail {

std::shared_ptr<StepRecorder> RunRecorder::begin_step(const RecordedLayers& layers, const Tensors& inputs) {
  if (is_done()) return nullptr;
  const std::int64_t step = next_step_++;
  Recording weights;
  weights.tensors = weights_of(layers, step);
  take_(std::move(weights), /*completes_step=*/false);
  if (step == settings_.num_steps) return nullptr;
  return std::make_shared<StepRecorder>(settings_, step, layers, inputs, [this](Recording recorded) {
    take_(std::move(recorded), /*completes_step=*/true);
  });
}

void RunRecorder::end(const RecordedLayers& layers) {
  if (next_step_ == 0 || is_done()) return;
  Recording weights;
  weights.tensors = weights_of(layers, next_step_++);
  take_(std::move(weights), /*completes_step=*/false);
}

}  // namespace gpipe::detail
