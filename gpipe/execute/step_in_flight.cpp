#include "gpipe/execute/step_in_flight.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

namespace gpipe {
namespace {

// The micro-batches of each stage that the schedule recomputes.
std::vector<std::vector<bool>> recomputed(const Schedule& schedule) {
  std::vector<std::vector<bool>> table(schedule.num_stages, std::vector<bool>(schedule.num_micro_batches));
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) table[action.stage][action.micro_batch] = true;
    }
  }
  return table;
}

}  // namespace

StepInFlight::StepInFlight(PipelineImpl& pipeline, const Tensors& inputs, bool with_grad, StageLoss loss)
    : pipeline_(pipeline) {
  const PipelineOptions& options = pipeline.options_;
  settings_.micro_batches = split_batch(inputs, options.num_micro_batches(), options.replicated_inputs());
  settings_.seed = options.seed();
  settings_.step = pipeline.step_++;
  settings_.with_grad = with_grad;
  settings_.loss = std::move(loss);
  for (const at::Tensor& input : inputs) {
    settings_.input_requires_grad.push_back(with_grad && input.defined() && input.requires_grad());
  }
  const auto& proven = pipeline.proven(static_cast<int>(settings_.micro_batches.size()), with_grad);
  const auto again = recomputed(proven.schedule);
  const int num_stages = proven.schedule.num_stages;
  std::vector<Stage*> pointers;
  int layer = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    std::vector<StageLayer> layers;
    for (int count = pipeline.layers_per_stage_[stage]; count > 0; --count) layers.push_back(pipeline.layers_[layer++]);
    stages_.push_back(std::make_unique<Stage>(std::move(layers), stage == 0, stage == num_stages - 1,
                                              [table = again[stage]](int micro_batch) { return table[micro_batch]; }));
    stages_.back()->begin_step(settings_);
    pointers.push_back(stages_.back().get());
  }
  executor_ = std::make_unique<Executor<Stage>>(proven.schedule, Routes{}, proven.capacities, std::move(pointers));
}

std::int64_t StepInFlight::num_samples() const {
  const MicroBatch& last = settings_.micro_batches.back();
  return last.first_sample + last.num_samples;
}

Timeline StepInFlight::run(Phase phase) {
  // The caller's grad mode, inference mode, autocast and dispatch keys go with the work; its autocast dtype is not among
  // what ThreadLocalState carries in every libtorch.
  const at::ThreadLocalState caller;
  const auto autocast_dtype = at::autocast::get_autocast_cpu_dtype();
  Timeline timeline;
  try {
    timeline = executor_->run(*pipeline_.workers_, phase, [&](const std::function<void()>& work) {
      const at::ThreadLocalStateGuard guard(caller);
      at::autocast::set_autocast_cpu_dtype(autocast_dtype);
      work();
    });
  } catch (...) {
    for (StepListener* listener : pipeline_.listeners_) listener->abandon_step();
    throw;
  }
  if (phase != Phase::kBackward) {
    for (StepListener* listener : pipeline_.listeners_) listener->end_step();
  }
  return timeline;
}

}  // namespace gpipe
