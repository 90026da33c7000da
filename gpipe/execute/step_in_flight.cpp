#include "gpipe/execute/step_in_flight.h"

#include <algorithm>
#include <utility>

#include "gpipe/execute/gradient_reducer.h"
#include "gpipe/execute/replicas.h"
#include "gpipe/execute/step_report.h"
#include "gpipe/model/sandbox.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/c10d/peers.h"
#include "gpipe/transport/wire_record.h"

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

StepInFlight::StepInFlight(PipelineImpl& pipeline, ReadyBatch batch, StepMode mode, StageLoss loss,
                           std::function<bool()> has_weights)
    : pipeline_(pipeline), caller_(mode != StepMode::kForwardOnly) {
  settings_.micro_batches = std::move(batch.micro_batches);
  settings_.input_requires_grad = std::move(batch.requires_grad);
  settings_.seed = pipeline.options_.seed();
  settings_.with_grad = mode != StepMode::kForwardOnly;
  settings_.loss = std::move(loss);
  settings_.has_weights = std::move(has_weights);
  settings_.first_micro_batch = batch.first_micro_batch;
  settings_.first_sample = batch.first_sample;
  if (pipeline.reducer_ != nullptr) {
    settings_.on_first_backward = [&pipeline](int stage) { pipeline.reducer_->begin_first_backward(stage); };
    settings_.on_last_backward = [&pipeline](int stage) { pipeline.reducer_->begin_last_backward(stage); };
  }
  together([&] { prepare(batch, mode); });
}

void StepInFlight::prepare(const ReadyBatch& batch, StepMode mode) {
  const bool training = pipeline_.is_training();
  for (const Tie& tie : pipeline_.ties_) relink(tie);
  pool_ = &pipeline_.pool(settings_.micro_batches, mode, settings_.loss);
  for (const Tie& tie : pipeline_.ties_) relink(tie);  // the layers may have been placed on devices just now
  for (const MicroBatch& micro_batch : settings_.micro_batches) {
    for (const at::Tensor& tensor : micro_batch.tensors) {
      if (tensor.defined()) batch_versions_.push_back(version_of(tensor));
    }
  }
  if (pipeline_.ranks_ != nullptr && pipeline_.skips_.count(training) == 0) {
    pipeline_.trace_skips(settings_.micro_batches.front());
  }
  if (pipeline_.tied_values_ != nullptr) pipeline_.tied_values_->bring();
  assembly_ = pipeline_.take(*pool_, batch.idle);
  settings_.step = pipeline_.step_;
  settings_.knows_skips = pipeline_.skips_.count(training) != 0;
  counts_ = training;
  if (counts_) ++pipeline_.step_;
  assembly_->begin_step(settings_);
  for (const auto& account : pipeline_.accounts_) account->reset_peak();
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
  started_ = std::chrono::steady_clock::now();
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
  assembly_ = pipeline_.take(*pool_, {});
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
  return together([&] { return run_here(phase); });
}

Timeline StepInFlight::run_backward(const std::function<Timeline()>& actions) {
  GradientReducer* const reducer = pipeline_.reducer_.get();
  if (reducer == nullptr) return actions();
  try {
    reducer->begin(pipeline_.reduced_parameters());
    Timeline timeline = actions();
    reducer->finish();
    return timeline;
  } catch (...) {
    reducer->abandon();
    throw;
  }
}

// With what the layers of other replicas have kept.
void StepInFlight::end_listeners() {
  const std::vector<StepListener*>& listeners = pipeline_.listeners_;
  Replicas* const replicas = pipeline_.ranks_ == nullptr ? nullptr : pipeline_.ranks_->replicas();
  if (replicas != nullptr && !listeners.empty()) {
    std::vector<std::int64_t> lengths;
    Tensors kept = {at::empty({0}, at::kDouble)};
    for (const StepListener* listener : listeners) {
      const at::Tensor own = listener->kept();
      lengths.push_back(own.defined() ? own.numel() : 0);
      if (own.defined()) kept.push_back(own.reshape({-1}).to(at::kDouble));
    }
    detail::WireRecord own;
    own.add("lengths", lengths);
    own.add("kept", at::cat(kept));
    const std::vector<detail::WireRecord> by_replica = replicas->gather(own);
    for (int replica = 0; replica < replicas->size(); ++replica) {
      if (replica == replicas->own()) continue;
      detail::WireReader reader(by_replica[replica], "this is not what the layers of a replica have kept");
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

Timeline StepInFlight::run_here(Phase phase) {
  if (phase == Phase::kBackward) {
    check_batch_is_unchanged();
    return pipeline_.last_timeline_ = run_backward([&] { return run_actions(phase); });
  }
  if (pipeline_.modes_.have_changed()) pipeline_.buffers_ = ChangingBuffers(pipeline_.built_layers());
  buffers_before_ = pipeline_.buffers_.snapshot();
  Timeline timeline;
  try {
    const auto actions = [&] { return settings_.knows_skips ? run_actions(phase) : run_without_skips(phase); };
    timeline = settings_.with_grad && phase == Phase::kAll ? run_backward(actions) : actions();
  } catch (...) {
    for (StepListener* listener : pipeline_.listeners_) listener->abandon_step();
    take_back();
    throw;
  }
  end_listeners();
  for (std::size_t stage = 0; stage < pipeline_.input_bytes_.size(); ++stage) {
    if (const Stage* here = assembly_->stage(stage)) pipeline_.input_bytes_[stage] = here->most_input_bytes();
  }
  pipeline_.buffers_.learn(buffers_before_);
  return pipeline_.last_timeline_ = timeline;
}

std::vector<Stage*> StepInFlight::own_stages() const {
  std::vector<Stage*> stages;
  if (assembly_ == nullptr) return stages;
  for (int stage = 0; stage < schedule().num_stages; ++stage) {
    if (Stage* const here = assembly_->stage(stage)) stages.push_back(here);
  }
  return stages;
}

void StepInFlight::divide_gradients(double weight) {
  for (Stage* const stage : own_stages()) stage->earlier_gradients().add_step(weight);
}

// As if the gradients were put together already: then those of the step are given back where there were earlier ones.
std::vector<StageMemory> StepInFlight::measure_memory() const {
  std::vector<StageMemory> memory = pipeline_.memory();
  for (std::size_t stage = 0; stage < memory.size(); ++stage) {
    Stage* const here = assembly_->stage(stage);
    if (here == nullptr) continue;
    memory[stage].gradient_bytes += here->earlier_gradients().bytes();
    memory[stage].live_bytes -= here->earlier_gradients().bytes_of_step();
  }
  return memory;
}

void StepInFlight::take_back() {
  for (Stage* const stage : own_stages()) stage->earlier_gradients().put_back();
  pipeline_.buffers_.put_back(buffers_before_);
  if (std::exchange(counts_, false)) --pipeline_.step_;
}

Tensors StepInFlight::input_grads() const {
  const std::vector<bool>& wanted = settings_.input_requires_grad;
  if (pipeline_.ranks_ == nullptr) return own_input_grads();
  if (std::count(wanted.begin(), wanted.end(), true) == 0) return Tensors(wanted.size());
  return together([&] {
    return pipeline_.ranks_->exchange().broadcast(pipeline_.rank_of_stage(0),
                                                  assembly_->first() != nullptr ? own_input_grads() : Tensors());
  });
}

void StepInFlight::agree_on_backward() {
  StepCall call = pipeline_.make_call("backward");
  call.step = settings_.step;
  call.assembly = assembly_->number();
  pipeline_.agree(call, [](StepCall&) {});
}

std::string StepInFlight::share(StepResult& result, const LossParts& parts, const std::string& refusal) {
  result.memory = measure_memory();
  if (pipeline_.ranks_ == nullptr) {
    add_up(parts, result);
    return refusal;
  }
  return together([&] {
    StepReport report;
    report.start = started_;
    report.worker = pipeline_.ranks_->own_worker();
    for (int stage = 0; stage < schedule().num_stages; ++stage) {
      if (pipeline_.runs_stage(stage)) report.stages.push_back(stage);
    }
    report.result = result;
    report.loss = parts;
    report.refusal = refusal;
    const World& world = pipeline_.ranks_->peers().world();
    const int last_worker = schedule().worker_of_stage.back();
    std::string agreed = merge(result, pipeline_.ranks_->exchange().gather(to_record(report)), world, last_worker);
    pipeline_.last_timeline_ = result.timeline;
    return agreed;
  });
}

Tensors StepInFlight::from_last(Tensors tensors) const {
  if (pipeline_.ranks_ == nullptr) return tensors;
  return together([&] {
    return pipeline_.ranks_->exchange().broadcast(pipeline_.rank_of_stage(schedule().num_stages - 1),
                                                  std::move(tensors));
  });
}

Tensors StepInFlight::own_input_grads() const {
  const std::vector<int>& replicated = pipeline_.options_.replicated_inputs();
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

}  // namespace gpipe
