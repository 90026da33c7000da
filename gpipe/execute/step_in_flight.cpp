#include "gpipe/execute/step_in_flight.h"

#include <algorithm>
#include <utility>

#include "gpipe/model/sandbox.h"

namespace gpipe {
namespace {

bool met_a_skip(const ActionError& error) {
  try {
    std::rethrow_exception(error.cause());
  } catch (const UnknownSkips&) {
    return true;
  } catch (...) {
    return false;
  }
}

// With all there is to say about it.
void rethrow_if_out_of_memory(const ActionError& error) {
  try {
    std::rethrow_exception(error.cause());
  } catch (const OutOfMemoryError& cause) {
    throw OutOfMemoryError(error.what(), cause);
  } catch (...) {  // NOLINT(bugprone-empty-catch) the action error says it
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
    : pipeline_(pipeline), caller_(mode != StepMode::kForwardOnly) {
  settings_.micro_batches = std::move(micro_batches);
  settings_.input_requires_grad = std::move(requires_grad);
  settings_.seed = pipeline.options_.seed();
  settings_.with_grad = mode != StepMode::kForwardOnly;
  settings_.loss = std::move(loss);
  for (const Tie& tie : pipeline.ties_) relink(tie);
  pool_ = &pipeline.pool(settings_.micro_batches, mode, settings_.loss);
  for (const Tie& tie : pipeline.ties_) relink(tie);  // the layers may have been placed on devices just now
  for (const MicroBatch& micro_batch : settings_.micro_batches) {
    for (const at::Tensor& tensor : micro_batch.tensors) {
      if (tensor.defined()) batch_versions_.push_back(version_of(tensor));
    }
  }
  assembly_ = pipeline.take(*pool_);
  settings_.step = pipeline.step_;
  settings_.knows_skips = pipeline.skips_.count(pipeline.is_training()) != 0;
  counts_ = pipeline.is_training();
  if (counts_) ++pipeline.step_;
  assembly_->begin_step(settings_);
  for (const auto& account : pipeline.accounts_) account->reset_peak();
}

StepInFlight::~StepInFlight() {
  if (assembly_ == nullptr) return;
  assembly_->end_step();
  pool_->idle.push_back(std::move(assembly_));
}

Timeline StepInFlight::run_actions(Phase phase) {
  if (phase != Phase::kForward) {
    for (const Tie& tie : pipeline_.ties_) forget_user_grads(tie);  // of a step that failed
  }
  const WatchdogOptions watchdog{pipeline_.options_.watchdog_seconds(), pipeline_.options_.on_stuck()};
  assembly_->follow_caller();
  try {
    Timeline timeline = assembly_->executor().run(
        *pipeline_.workers_, phase, [&](const std::function<void()>& work) { caller_.run(work); }, watchdog);
    assembly_->lead_caller();
    return timeline;
  } catch (const ActionError& error) {
    assembly_->lead_caller();
    rethrow_if_out_of_memory(error);
    throw;
  } catch (...) {
    assembly_->lead_caller();
    throw;
  }
}

// A step meets the first skip before its first backward, so that there are no gradients to take back.
Timeline StepInFlight::run_without_skips(Phase phase) {
  const std::vector<MicroBatch> originals = settings_.micro_batches;
  for (MicroBatch& micro_batch : settings_.micro_batches) {
    for (at::Tensor& tensor : micro_batch.tensors) {
      if (tensor.defined()) tensor = tensor.detach().clone();  // a layer may change it in place
    }
  }
  {
    Sandbox sandbox(pipeline_.layers_);
    try {
      Timeline timeline = run_actions(phase);
      sandbox.keep();
      settings_.micro_batches = originals;
      pipeline_.set_skips(counts_, {});
      return timeline;
    } catch (const ActionError& error) {
      if (!met_a_skip(error)) throw;
    }
  }
  settings_.micro_batches = originals;
  assembly_.reset();  // it has no routes for the skips
  pipeline_.trace_skips(settings_.micro_batches.front());
  assembly_ = pipeline_.take(*pool_);
  settings_.knows_skips = true;
  assembly_->begin_step(settings_);
  return run_actions(phase);
}

void StepInFlight::check_batch_is_unchanged() const {
  std::size_t next = 0;
  for (const MicroBatch& micro_batch : settings_.micro_batches) {
    for (const at::Tensor& tensor : micro_batch.tensors) {
      if (!tensor.defined() || version_of(tensor) == batch_versions_[next++]) continue;
      throw InvalidArgument(
          "the batch was changed in place between the forward and its backward, which needs it; use new memory for "
          "each "
          "batch");
    }
  }
}

Timeline StepInFlight::run(Phase phase) {
  if (phase == Phase::kBackward) {
    check_batch_is_unchanged();
    return pipeline_.last_timeline_ = run_actions(phase);
  }
  if (pipeline_.modes_.have_changed()) pipeline_.buffers_ = ChangingBuffers(pipeline_.layers_);
  Tensors buffers = pipeline_.buffers_.snapshot();
  Timeline timeline;
  try {
    timeline = settings_.knows_skips ? run_actions(phase) : run_without_skips(phase);
  } catch (...) {
    pipeline_.buffers_.put_back(buffers);
    for (StepListener* listener : pipeline_.listeners_) listener->abandon_step();
    if (std::exchange(counts_, false)) --pipeline_.step_;
    throw;
  }
  for (StepListener* listener : pipeline_.listeners_) listener->end_step();
  for (std::size_t stage = 0; stage < pipeline_.input_bytes_.size(); ++stage) {
    pipeline_.input_bytes_[stage] = assembly_->stage(stage).most_input_bytes();
  }
  pipeline_.buffers_.learn(buffers);
  return pipeline_.last_timeline_ = timeline;
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
