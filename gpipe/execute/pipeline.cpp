#include "gpipe/execute/pipeline.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "gpipe/error.h"
#include "gpipe/execute/step_in_flight.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

PipelineOptions checked(PipelineOptions options) {
  const auto check = [](const char* what, int value) {
    if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", what, value));
  };
  check("num_stages", options.num_stages());
  check("threads_per_stage", options.threads_per_stage());
  if (options.custom_schedule()) options.num_micro_batches(options.custom_schedule()->num_micro_batches);
  if (options.num_micro_batches() == 0) options.num_micro_batches(4 * options.num_stages());
  check("num_micro_batches", options.num_micro_batches());
  return options;
}

Schedule make_schedule(const PipelineOptions& options, int num_micro_batches) {
  if (!options.custom_schedule()) {
    return gpipe::make_schedule(options.schedule(), options.num_stages(), num_micro_batches,
                                options.chunks_per_worker());
  }
  const Schedule& schedule = *options.custom_schedule();
  if (schedule.num_workers() != options.num_stages()) {
    throw InvalidArgument(fmt::format("the schedule is for {} workers, but num_stages is {}", schedule.num_workers(),
                                      options.num_stages()));
  }
  if (schedule.num_micro_batches != num_micro_batches) {
    throw InvalidArgument(fmt::format("the schedule is for {} micro-batches, but the batch makes {}",
                                      schedule.num_micro_batches, num_micro_batches));
  }
  return schedule;
}

std::vector<int> make_balance(const PipelineOptions& options, int num_layers, int num_stages) {
  if (num_stages > num_layers) {
    throw InvalidArgument(
        fmt::format("{} stages for {} layers; give at most one stage a layer", num_stages, num_layers));
  }
  std::vector<int> balance = options.balance();
  if (balance.empty()) {
    for (int stage = 0; stage < num_stages; ++stage) {
      balance.push_back(num_layers / num_stages + (stage < num_layers % num_stages ? 1 : 0));
    }
  }
  if (static_cast<int>(balance.size()) != num_stages) {
    throw InvalidArgument(fmt::format("balance has {} entries, but there are {} stages", balance.size(), num_stages));
  }
  for (const int layers : balance) {
    if (layers < 1)
      throw InvalidArgument(fmt::format("balance gives a stage {} layers; each needs at least 1", layers));
  }
  const int sum = std::accumulate(balance.begin(), balance.end(), 0);
  if (sum != num_layers) {
    throw InvalidArgument(fmt::format("balance adds up to {} layers, but the model has {}", sum, num_layers));
  }
  return balance;
}

void drop_backward(Schedule& schedule) {
  for (auto& actions : schedule.workers) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [](const Action& action) { return action.kind != ActionKind::kForward; }),
                  actions.end());
  }
}

}  // namespace

PipelineImpl::PipelineImpl(const LayerChain& chain, const PipelineOptions& options) : options_(checked(options)) {
  const Schedule schedule = make_schedule(options_, options_.num_micro_batches());
  validate(schedule);
  layers_per_stage_ = make_balance(options_, chain.size(), schedule.num_stages);
  for (int layer = 0; layer < chain.size(); ++layer) {
    layers_.push_back({layer, chain.name(layer), chain.build(layer, options_.seed())});
    register_module(chain.name(layer), layers_.back().layer.module);
  }
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* listener = dynamic_cast<StepListener*>(module.get())) listeners_.push_back(listener);
  }
  workers_ = std::make_unique<Workers>(options_.num_stages());
  // The number of intra-op threads is fixed once per thread: kernels then reduce in the same order whatever the caller does.
  // at::get_num_threads forces libtorch's own lazy setting first.
  workers_->run(
      [&](int) {
        at::get_num_threads();
        omp_set_num_threads(options_.threads_per_stage());
      },
      [] {});
}

const PipelineImpl::Proven& PipelineImpl::proven(int num_micro_batches, bool with_grad) {
  const auto key = std::make_tuple(num_micro_batches, with_grad, is_training());
  const auto found = proven_.find(key);
  if (found != proven_.end()) return found->second;
  Proven made;
  made.schedule = make_schedule(options_, num_micro_batches);
  if (!with_grad) {
    drop_backward(made.schedule);
  } else {
    made.schedule = with_recompute(std::move(made.schedule), is_training() ? options_.recompute() : Recompute::kNever);
  }
  for (const FlowCertificate& flow : validate(made.schedule).flows) made.capacities.push_back(flow.live_capacity);
  return proven_.emplace(key, std::move(made)).first->second;
}

StepResult PipelineImpl::train_step(const Tensors& inputs, const Tensors& targets, const Loss& loss) {
  const std::vector<MicroBatch> target_batches = split_batch(targets, options_.num_micro_batches());
  std::int64_t num_samples = target_batches.back().first_sample + target_batches.back().num_samples;
  const at::AutoGradMode grad_mode(true);
  StepInFlight step(*this, inputs, true, [&](int micro_batch, const Tensors& outputs) {
    const MicroBatch& target = target_batches[micro_batch];
    const at::Tensor value = loss(outputs, target.tensors);
    if (options_.loss_reduction() == LossReduction::kSum) return value;
    return value * (static_cast<double>(target.num_samples) / static_cast<double>(num_samples));
  });
  if (step.num_samples() != num_samples) {
    throw InvalidArgument(
        fmt::format("the inputs have {} rows, but the targets have {}", step.num_samples(), num_samples));
  }
  StepResult result;
  result.timeline = step.run(Phase::kAll);
  for (const Tensors& value : step.results()) {
    result.loss = result.loss.defined() ? result.loss + value.front() : value.front();
  }
  return result;
}

}  // namespace gpipe
