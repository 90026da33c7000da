#include "gpipe/execute/step_in_flight.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cfenv>
#include <utility>

#include "gpipe/model/sandbox.h"

namespace gpipe {
namespace {

// What the workers take over from the caller's thread: inference mode, autocast, dispatch keys, and the floating-point
// environment, in which flush-to-zero is.
class CallerState {
 public:
  explicit CallerState(bool with_grad) : with_grad_(with_grad) { std::fegetenv(&floating_point_); }

  void run(const std::function<void()>& work) const {
    const at::ThreadLocalStateGuard guard(state_);
    const at::AutoGradMode grad_mode(with_grad_);
    // Neither is among what ThreadLocalState carries in every libtorch. The cache of casts is off: it would hand a copy of
    // a weight that was cast without a graph to a recompute that needs one.
    at::autocast::set_autocast_cpu_dtype(autocast_dtype_);
    at::autocast::set_autocast_cache_enabled(false);
    std::fesetenv(&floating_point_);
    work();
  }

 private:
  const bool with_grad_;
  const at::ThreadLocalState state_;
  const at::ScalarType autocast_dtype_ = at::autocast::get_autocast_cpu_dtype();
  std::fenv_t floating_point_{};
};

bool met_a_skip(const ActionError& error) {
  try {
    std::rethrow_exception(error.cause());
  } catch (const UnknownSkips&) {
    return true;
  } catch (...) {
    return false;
  }
}

at::Tensor sum(const Tensors& parts) {
  at::Tensor total = parts.front();
  for (std::size_t index = 1; index < parts.size(); ++index) total = total + parts[index];
  return total;
}

}  // namespace

StepInFlight::StepInFlight(PipelineImpl& pipeline, std::vector<MicroBatch> micro_batches,
                           std::vector<bool> requires_grad, StepMode mode, StageLoss loss)
    : pipeline_(pipeline) {
  settings_.micro_batches = std::move(micro_batches);
  settings_.input_requires_grad = std::move(requires_grad);
  settings_.seed = pipeline.options_.seed();
  settings_.with_grad = mode != StepMode::kForwardOnly;
  settings_.loss = std::move(loss);
  for (const Tie& tie : pipeline.ties_) relink(tie);
  pool_ = &pipeline.pool(settings_.micro_batches, mode);
  assembly_ = pipeline.take(*pool_);
  settings_.step = pipeline.step_;
  settings_.knows_skips = pipeline.skips_.count(pipeline.is_training()) != 0;
  counts_ = pipeline.is_training();
  if (counts_) ++pipeline.step_;
  assembly_->begin_step(settings_);
  for (const auto& account : pipeline.accounts_) account->reset_peak();
}

StepInFlight::~StepInFlight() {
  assembly_->end_step();
  pool_->idle.push_back(std::move(assembly_));
}

Timeline StepInFlight::run_actions(Phase phase) {
  const CallerState caller(settings_.with_grad);
  if (phase != Phase::kForward) {
    for (const Tie& tie : pipeline_.ties_) forget_user_grads(tie);  // of a step that failed
  }
  const WatchdogOptions watchdog{pipeline_.options_.watchdog_seconds(), pipeline_.options_.on_stuck()};
  assembly_->follow_caller();
  Timeline timeline = assembly_->executor().run(
      *pipeline_.workers_, phase, [&](const std::function<void()>& work) { caller.run(work); }, watchdog);
  assembly_->lead_caller();
  return timeline;
}

// A step meets the first skip before its first backward, so that there are no gradients to take back.
Timeline StepInFlight::run_without_skips(Phase phase) {
  {
    Sandbox sandbox(pipeline_.layers_);
    try {
      Timeline timeline = run_actions(phase);
      sandbox.keep();
      pipeline_.skips_[counts_] = {};
      return timeline;
    } catch (const ActionError& error) {
      if (!met_a_skip(error)) throw;
    }
  }
  assembly_->end_step();
  pipeline_.trace_skips(settings_.micro_batches.front());
  pool_->skips = pipeline_.skips_.at(counts_);
  pool_->idle.clear();
  assembly_ = pipeline_.take(*pool_);
  settings_.knows_skips = true;
  assembly_->begin_step(settings_);
  return run_actions(phase);
}

Timeline StepInFlight::run(Phase phase) {
  Timeline timeline;
  try {
    timeline = settings_.knows_skips ? run_actions(phase) : run_without_skips(phase);
  } catch (...) {
    for (StepListener* listener : pipeline_.listeners_) listener->abandon_step();
    if (phase != Phase::kBackward && std::exchange(counts_, false)) --pipeline_.step_;
    throw;
  }
  if (phase != Phase::kBackward) {
    for (StepListener* listener : pipeline_.listeners_) listener->end_step();
  }
  pipeline_.last_timeline_ = timeline;
  return timeline;
}

Tensors StepInFlight::input_grads() const {
  const std::vector<int>& replicated = pipeline_.options_.replicated_inputs();
  const std::vector<Tensors>& by_micro_batch = assembly_->first().input_grads();
  Tensors result(settings_.input_requires_grad.size());
  for (std::size_t index = 0; index < result.size(); ++index) {
    if (!settings_.input_requires_grad[index]) continue;
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
