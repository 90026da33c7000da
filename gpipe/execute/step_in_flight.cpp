#include "gpipe/execute/step_in_flight.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cfenv>
#include <utility>

namespace gpipe {
namespace {

// What the workers take over from the caller's thread: grad mode, inference mode, autocast, dispatch keys, and the
// floating-point environment, in which flush-to-zero is.
class CallerState {
 public:
  CallerState() { std::fegetenv(&floating_point_); }

  void run(const std::function<void()>& work) const {
    const at::ThreadLocalStateGuard guard(state_);
    // Neither is among what ThreadLocalState carries in every libtorch. The cache of casts is off: it would hand a copy of
    // a weight that was cast without a graph to a recompute that needs one.
    at::autocast::set_autocast_cpu_dtype(autocast_dtype_);
    at::autocast::set_autocast_cache_enabled(false);
    std::fesetenv(&floating_point_);
    work();
  }

 private:
  const at::ThreadLocalState state_;
  const at::ScalarType autocast_dtype_ = at::autocast::get_autocast_cpu_dtype();
  std::fenv_t floating_point_{};
};

at::Tensor sum(const Tensors& parts) {
  at::Tensor total = parts.front();
  for (std::size_t index = 1; index < parts.size(); ++index) total = total + parts[index];
  return total;
}

}  // namespace

StepInFlight::StepInFlight(PipelineImpl& pipeline, std::vector<MicroBatch> micro_batches,
                           std::vector<bool> requires_grad, bool with_grad, StageLoss loss)
    : pipeline_(pipeline) {
  settings_.micro_batches = std::move(micro_batches);
  settings_.input_requires_grad = std::move(requires_grad);
  settings_.seed = pipeline.options_.seed();
  settings_.with_grad = with_grad;
  settings_.loss = std::move(loss);
  for (const Tie& tie : pipeline.ties_) relink(tie);
  pool_ = &pipeline.pool(settings_.micro_batches, with_grad);
  assembly_ = pipeline.take(*pool_);
  settings_.step = pipeline.step_;
  counts_ = pipeline.is_training();
  if (counts_) ++pipeline.step_;
  assembly_->begin_step(settings_);
}

StepInFlight::~StepInFlight() {
  assembly_->end_step();
  pool_->idle.push_back(std::move(assembly_));
}

Timeline StepInFlight::run(Phase phase) {
  const CallerState caller;
  if (phase != Phase::kForward) {
    for (const Tie& tie : pipeline_.ties_) forget_user_grads(tie);  // of a step that failed
  }
  const WatchdogOptions watchdog{pipeline_.options_.watchdog_seconds(), pipeline_.options_.on_stuck()};
  Timeline timeline;
  try {
    timeline = assembly_->executor().run(
        *pipeline_.workers_, phase, [&](const std::function<void()>& work) { caller.run(work); }, watchdog);
  } catch (...) {
    for (StepListener* listener : pipeline_.listeners_) listener->abandon_step();
    if (phase != Phase::kBackward && std::exchange(counts_, false)) --pipeline_.step_;
    throw;
  }
  if (phase != Phase::kBackward) {
    for (StepListener* listener : pipeline_.listeners_) listener->end_step();
  }
  return timeline;
}

Tensors StepInFlight::input_grads() const {
  const std::vector<int>& replicated = pipeline_.options_.replicated_inputs();
  const std::vector<Tensors>& by_micro_batch = assembly_->first().input_grads();
  Tensors result(settings_.input_requires_grad.size());
  for (std::size_t index = 0; index < result.size(); ++index) {
    Tensors parts;
    bool any = false;
    for (std::size_t micro_batch = 0; micro_batch < by_micro_batch.size(); ++micro_batch) {
      const at::Tensor& grad = by_micro_batch[micro_batch][index];
      any |= grad.defined();
      parts.push_back(grad.defined() ? grad : at::zeros_like(settings_.micro_batches[micro_batch].tensors[index]));
    }
    if (!any) continue;
    const bool whole = std::count(replicated.begin(), replicated.end(), static_cast<int>(index)) != 0;
    result[index] = whole ? sum(parts) : at::cat(parts, 0);
  }
  return result;
}

}  // namespace gpipe
