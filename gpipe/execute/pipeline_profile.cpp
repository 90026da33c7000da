// What a pipeline finds out about its layers on the first batch: what they cost, which skips they use, how to cut them.
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/chosen_stages.h"
#include "gpipe/execute/pipeline.h"
#include "gpipe/execute/pipeline_options.h"
#include "gpipe/execute/rematerialized_layers.h"
#include "gpipe/execute/skip_trial.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/model/profiler.h"
#include "gpipe/plan/plan.h"
#include "gpipe/simulate/planner.h"
#include "gpipe/transport/c10d/exchange.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe {

Profile PipelineImpl::measure_layers(const MicroBatch& sample, const StageLoss& loss) {
  bool in_loss = false;
  if (loss) {
    // What it throws, the step itself will throw, and say more about it.
    const StageLoss tried = [&](int micro_batch, const Tensors& outputs) {
      in_loss = true;
      return loss(micro_batch, outputs);
    };
    try {
      return look_at_layers(sample, /*with_seconds=*/true, tried);
    } catch (const ActionError&) {
      if (!in_loss) throw;
    }
  }
  return look_at_layers(sample, /*with_seconds=*/true);
}

Profile PipelineImpl::look_at_layers(const MicroBatch& sample, bool with_seconds, const StageLoss& loss) {
  LayerSource source;
  for (const ChainLayer& layer : layers_) source.names.push_back(layer.name);
  source.layer = [this](int layer) { return layers_[layer]; };
  ProfileOptions options;
  options.seed = options_.seed();
  options.repeats = 3;
  options.budget_seconds = 2;
  options.count_bytes = options_.measure_memory() || options_.recompute() == Recompute::kAuto;
  if (loss) {
    options.loss = [&](const Tensors& outputs) {
      LayerRun run;
      run.seed = options_.seed();
      run.layer = num_layers();
      const LayerScope scope(run);
      return loss(0, outputs);
    };
  }
  Profile profile;
  const at::ThreadLocalState caller;
  const auto run = [&](int worker) {
    if (worker != 0) return;
    const at::ThreadLocalStateGuard guard(caller);
    ProfilerPosition at;
    try {
      profile =
          with_seconds ? profile_layers(source, sample, options, at) : trace_layers(source, sample, options.seed, at);
    } catch (const SkipError&) {
      throw;
    } catch (...) {
      const Action action{at.in_backward ? ActionKind::kBackward : ActionKind::kForward, stage_of(at.layer), 0};
      const ChainLayer& layer = layers_[at.layer];
      throw_action_error(worker, action,
                         fmt::format("layer {} ({}){}, in a trial run before the first step", at.layer, layer.name,
                                     at.given.describe(*layer.layer.module)));
    }
  };
  workers_->run(run, [] {});
  return profile;
}

void PipelineImpl::trace_skips(const MicroBatch& sample) {
  if (ranks_ != nullptr) {
    const TrialModel model{layers_, layers_per_stage_, worker_of_stage_, streams_, options_.seed()};
    std::vector<SkipProfile> skips;
    const at::ThreadLocalState caller;
    workers_->run(
        [&](int) {
          const at::ThreadLocalStateGuard guard(caller);
          skips = try_skips(model, sample, *ranks_);
        },
        [] {});
    set_skips(is_training(), std::move(skips));
    return;
  }
  set_skips(is_training(), look_at_layers(sample, /*with_seconds=*/false).skips);
}

void PipelineImpl::set_skips(bool training, std::vector<SkipProfile> skips) {
  if (!skips.empty()) {
    for (auto& [key, pool] : pools_) pool.idle.clear();  // they have no routes for them
  }
  skips_[training] = std::move(skips);
}

void PipelineImpl::split_by_profile(const MicroBatch& sample, const StageLoss& loss) {
  if (runs_first() && (ranks_ == nullptr || ranks_->own_replica() == 0)) {
    // Over processes the loss is elsewhere, where the targets are.
    profile_ = measure_layers(sample, ranks_ == nullptr ? loss : StageLoss());
    if (options_.custom_schedule()) {
      const Schedule schedule = schedule_for(options_, options_.num_micro_batches());
      for (const PartitionStage& stage : partition_for(profile_, schedule, {}).stages) {
        layers_per_stage_.push_back(stage.num_layers);
      }
    } else {
      choose_by_profile();
    }
  }
  if (ranks_ != nullptr) {
    // What one rank has measured holds for all.
    const ChosenStages own{layers_per_stage_, recompute_by_stage_, rematerialization_, profile_};
    ChosenStages chosen = read_chosen_stages(ranks_->exchange().gather(to_record(own)).front());
    const int num_stages = static_cast<int>(worker_of_stage_.size());
    check_balance(chosen.layers_per_stage, num_layers(), num_stages);
    check_rematerialization_by_stage(chosen.rematerialization, chosen.layers_per_stage, num_stages);
    layers_per_stage_ = std::move(chosen.layers_per_stage);
    recompute_by_stage_ = std::move(chosen.recompute_by_stage);
    rematerialization_ = std::move(chosen.rematerialization);
    profile_ = std::move(chosen.profile);
    keep_own_layers();
    copy_first_replica();
  }
  set_skips(is_training(), profile_.skips);
}

void PipelineImpl::choose_by_profile() {
  PlanOptions options;
  options.num_stages = options_.num_stages();
  options.num_micro_batches = options_.num_micro_batches();
  options.schedule = options_.schedule();
  options.chunks = options_.chunks_per_worker();
  options.recompute = options_.recompute();
  options.recompute_by_stage = options_.recompute_by_stage();
  options.optimizer_slots = options_.optimizer_slots();
  if (options_.memory_limit_bytes() > 0) options.memory_limit_bytes = options_.memory_limit_bytes();
  options.rematerialize = !share_a_parameter(layers_);
  const bool leaves_recompute = options.recompute == Recompute::kAuto;
  Plan chosen;
  try {
    chosen = plan(profile_, options);
  } catch (const InfeasibleError&) {
    if (leaves_recompute) throw;
    options.memory_limit_bytes.reset();  // a prediction: the step itself will show whether it fits
    chosen = plan(profile_, options);
  }
  layers_per_stage_ = chosen.layers_per_stage;
  if (!leaves_recompute) return;
  rematerialization_ = chosen.rematerialization;
  recompute_by_stage_ = chosen.recompute_by_stage;
  if (recompute_by_stage_.empty()) recompute_by_stage_.assign(layers_per_stage_.size(), chosen.recompute);
}

}  // namespace gpipe
