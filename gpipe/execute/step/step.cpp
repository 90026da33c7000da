#include "gpipe/execute/step/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "gpipe/execute/group/step_report.h"
#include "gpipe/model/skip_store.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

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

Step::Step(Engine& engine, MiniBatch batch, StepMode mode, StepLoss loss)
    : engine_(engine), caller_(mode != StepMode::kForwardOnly), targets_(loss.targets) {
  settings_.seed = engine.options().seed();
  settings_.with_grad = mode != StepMode::kForwardOnly;
  settings_.loss = std::move(loss.call);
  settings_.has_weights = std::move(loss.has_weights);
  settings_.first_micro_batch = batch.first_micro_batch;
  settings_.first_sample = batch.first_sample;
  GradientSum& sum = engine.group().gradient_sum();
  settings_.on_first_backward = [&sum](int stage) { sum.begin_first_backward(stage); };
  settings_.on_last_backward = [&sum](int stage) { sum.begin_last_backward(stage); };
  if (mode == StepMode::kUpdating) settings_.update = engine.update();
  for (const at::Tensor& parameter : loss.is_checked ? engine.model().face().parameters() : Tensors()) {
    gradients_before_.emplace_back(parameter, parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
  engine.group().failing([&] { begin(batch, mode); });
}

void Step::begin(MiniBatch& batch, StepMode mode) {
  const bool is_training = engine_.model().is_training();
  assembly_ =
      engine_.lease({static_cast<int>(batch.micro_batches.size()), mode, is_training}, batch, settings_.loss, caller_);
  settings_.micro_batches = std::move(batch.micro_batches);
  settings_.input_requires_grad = std::move(batch.requires_grad);
  for (const MicroBatch& micro_batch : settings_.micro_batches) {
    for (const at::Tensor& tensor : micro_batch.tensors) {
      if (tensor.defined()) batch_versions_.push_back(version_of(tensor));
    }
  }
  settings_.step = engine_.step();
  has_number_ = is_training;
  if (has_number_) engine_.set_step(engine_.step() + 1);
  if (settings_.with_grad) settings_.recorder = engine_.begin_recording(settings_.micro_batches);
  assembly_->begin_step(settings_);
  engine_.split()->memory().reset_peaks();
}

void Step::take_given() {
  if (!engine_.split()->has_devices()) return;
  for (const MicroBatch& micro_batch : settings_.micro_batches) settings_.given.record(micro_batch.tensors);
  if (targets_ == nullptr || assembly_->last() == nullptr) return;
  for (MicroBatch& micro_batch : *targets_) {
    settings_.given.record(micro_batch.tensors);
    assembly_->last()->bring_given(micro_batch.tensors);
  }
}

Timeline Step::run(Phase phase) {
  return engine_.group().failing([&] {
    if (phase == Phase::kBackward) {
      check_batch_is_unchanged();
      return run_and_sum_gradients(phase);
    }
    buffers_before_ = engine_.model().snapshot_buffers();
    try {
      Timeline timeline =
          settings_.with_grad && phase == Phase::kAll ? run_and_sum_gradients(phase) : run_actions(phase);
      commit();
      return timeline;
    } catch (...) {
      undo_failed_run();
      throw;
    }
  });
}

void Step::undo_failed_run() {
  try {
    for (StepListener* listener : engine_.model().listeners()) listener->abandon_step();
    roll_back();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch) a device that has failed fails again
  }
}

Timeline Step::run_actions(Phase phase) {
  if (phase != Phase::kForward) engine_.model().forget_tied_grads();  // of a step that failed
  const WatchdogOptions watchdog{engine_.options().watchdog_seconds(), engine_.options().on_stuck()};
  take_given();
  started_ = std::chrono::steady_clock::now();
  try {
    return assembly_->run(
        engine_.runner().workers(), phase, [&](const std::function<void()>& work) { caller_.run(work); }, watchdog);
  } catch (const ActionError& error) {
    rethrow_if_out_of_memory(error);
    throw;
  }
}

Timeline Step::run_and_sum_gradients(Phase phase) {
  GradientSum& sum = engine_.group().gradient_sum();
  try {
    sum.begin([&] { return engine_.split()->reduced_parameters(); });
    Timeline timeline = run_actions(phase);
    sum.finish();
    return timeline;
  } catch (...) {
    sum.abandon();
    throw;
  }
}

void Step::check_batch_is_unchanged() const {
  std::size_t next = 0;
  for (const MicroBatch& micro_batch : settings_.micro_batches) {
    for (const at::Tensor& tensor : micro_batch.tensors) {
      if (!tensor.defined() || version_of(tensor) == batch_versions_[next++]) continue;
      throw InvalidArgument(
          "the batch was changed in place between the forward and its backward, which needs it; use new memory for "
          "each batch");
    }
  }
}

void Step::commit() {
  end_listeners();
  for (int stage = 0; stage < schedule().num_stages; ++stage) {
    const Stage* const here = assembly_->stage(stage);
    if (here != nullptr) engine_.split()->memory().set_input_bytes(stage, here->most_input_bytes());
  }
  engine_.model().learn_buffers(buffers_before_);
}

void Step::roll_back() {
  if (std::exchange(has_number_, false)) engine_.set_step(engine_.step() - 1);
  for (Stage* const stage : assembly_->own_stages()) stage->earlier_gradients().put_back();
  for (const auto& [parameter, before] : gradients_before_) {
    at::Tensor& grad = parameter.mutable_grad();
    if (before.defined()) {
      grad.copy_(before);
    } else {
      grad.reset();
    }
  }
  engine_.model().put_back_buffers(buffers_before_);
}

void Step::end_listeners() {
  const std::vector<StepListener*>& listeners = engine_.model().listeners();
  const World& world = engine_.group().world();
  if (world.num_replicas > 1 && !listeners.empty()) {
    std::vector<std::int64_t> lengths;
    Tensors kept = {at::empty({0}, at::kDouble)};
    for (const StepListener* listener : listeners) {
      const at::Tensor own = listener->kept();
      lengths.push_back(own.defined() ? own.numel() : 0);
      if (own.defined()) kept.push_back(own.reshape({-1}).to(at::kDouble));
    }
    WireRecord own;
    own.add("lengths", lengths);
    own.add("kept", at::cat(kept));
    const std::vector<WireRecord> by_replica = engine_.group().gather_replicas(own);
    for (int replica = 0; replica < world.num_replicas; ++replica) {
      if (replica == world.replica()) continue;
      WireReader reader(by_replica[replica], "this is not what the layers of a replica have kept");
      reader.check_num_rows({"lengths"}, listeners.size());
      const std::vector<std::int64_t> of_listener = reader.integers<std::int64_t>("lengths", 0);
      const at::Tensor of_replica = reader.tensor("kept");
      reader.finish();
      std::int64_t begin = 0;
      for (std::size_t index = 0; index < listeners.size(); ++index) {
        const std::int64_t length = of_listener[index];
        if (length > 0) listeners[index]->keep(of_replica.narrow(0, begin, length));
        begin += length;
      }
    }
  }
  for (StepListener* listener : listeners) listener->end_step();
}

void Step::divide_gradients(double weight) {
  for (Stage* const stage : assembly_->own_stages()) stage->earlier_gradients().add_step(weight);
}

// As if the gradients were put together already: then those of the step are given back where there were earlier ones.
std::vector<StageMemory> Step::measure_memory() const {
  std::vector<StageMemory> memory = engine_.split()->memory().memory();
  for (std::size_t stage = 0; stage < memory.size(); ++stage) {
    Stage* const here = assembly_->stage(static_cast<int>(stage));
    if (here == nullptr) continue;
    memory[stage].gradient_bytes += here->earlier_gradients().bytes();
    memory[stage].live_bytes -= here->earlier_gradients().bytes_of_step();
  }
  return memory;
}

void Step::finish_recording(const at::Tensor& loss, const Tensors& input_grads) {
  if (settings_.recorder != nullptr) settings_.recorder->finish(loss, input_grads, engine_.recorded_layers());
}

void Step::agree_on_backward() {
  StepCall call = engine_.make_call("backward");
  call.step = settings_.step;
  call.assembly = assembly_->number();
  engine_.group().agree(call, [](StepCall&) {});
}

std::string Step::share(StepResult& result, const LossParts& parts, const std::string& refusal) {
  result.memory = measure_memory();
  StepReport report;
  report.start = started_;
  report.worker = engine_.group().world().stage();
  for (int stage = 0; stage < schedule().num_stages; ++stage) {
    if (engine_.runs_stage(stage)) report.stages.push_back(stage);
  }
  report.loss = parts;
  report.refusal = refusal;
  const int last_worker = schedule().worker_of_stage.back();
  Group& group = engine_.group();
  std::string agreed = group.failing([&] { return group.complete(result, report, last_worker); });
  engine_.set_last_timeline(result.timeline);
  return agreed;
}

Tensors Step::from_last(Tensors tensors) const {
  Group& group = engine_.group();
  return group.failing([&] { return group.broadcast(schedule().worker_of_stage.back(), std::move(tensors)); });
}

Tensors Step::input_grads() const {
  const std::vector<bool>& wanted = settings_.input_requires_grad;
  if (std::count(wanted.begin(), wanted.end(), true) == 0) return Tensors(wanted.size());
  Group& group = engine_.group();
  return group.failing([&] {
    return group.broadcast(schedule().worker_of_stage.front(),
                           assembly_->first() != nullptr ? own_input_grads() : Tensors());
  });
}

Tensors Step::own_input_grads() const {
  const std::vector<int>& replicated = engine_.options().replicated_inputs();
  const std::vector<Tensors>& by_micro_batch = assembly_->first()->input_grads();
  Tensors result(settings_.input_requires_grad.size());
  for (std::size_t index = 0; index < result.size(); ++index) {
    if (!settings_.input_requires_grad[index]) continue;
    Tensors parts;
    bool any = false;
    for (std::size_t micro_batch = 0; micro_batch < by_micro_batch.size(); ++micro_batch) {
      const at::Tensor& grad = by_micro_batch[micro_batch][index];
      const at::Tensor& input = settings_.micro_batches[micro_batch].tensors[index];
      any |= grad.defined();
      parts.push_back(grad.defined() ? grad.to(input.device()) : at::zeros_like(input));
    }
    if (!any) continue;
    const bool whole = std::count(replicated.begin(), replicated.end(), static_cast<int>(index)) != 0;
    result[index] = whole ? sum(parts) : at::cat(parts, 0);
  }
  return result;
}

}  // namespace gpipe::detail
