#include "gpipe/execute/runner/first_batch.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/execute/runner/caller_state.h"
#include "gpipe/execute/stage/rematerialized_layers.h"
#include "gpipe/execute/values/checked_options.h"
#include "gpipe/interpret/throw_action_error.h"
#include "gpipe/model/layer_profiler.h"
#include "gpipe/model/layer_scope.h"
#include "gpipe/plan/plan.h"
#include "gpipe/simulate/planner.h"

namespace gpipe::detail {
namespace {

Profile profile_on_worker(const Model& model, const ProfileOptions& options, Workers& workers,
                          const ProfileSample& sample) {
  LayerSource source;
  source.names = model.layer_names();
  source.layer = [&](int layer) { return model.layers()[layer]; };
  Profile profile;
  const CallerState caller(/*with_grad=*/true);
  const auto run = [&](int worker) {
    if (worker != 0) return;
    ProfilerPosition at;
    try {
      caller.run([&] { profile = profile_layers(source, sample, options, at); });
    } catch (const SkipError&) {
      throw;
    } catch (...) {
      const Action action{at.in_backward ? ActionKind::kBackward : ActionKind::kForward, /*stage=*/0, 0};
      const ChainLayer& layer = model.layers()[at.layer];
      throw_action_error(worker, action,
                         fmt::format("layer {} ({}){}, in a trial run before the first step", at.layer, layer.name,
                                     at.given.describe(*layer.layer.module)));
    }
  };
  workers.run(run, [] {});
  return profile;
}

PlanOptions plan_options(const Model& model, const PipelineOptions& options, bool is_alone) {
  PlanOptions result;
  result.num_stages = options.num_stages();
  result.num_micro_batches = options.num_micro_batches();
  result.schedule = options.schedule();
  result.chunks = options.chunks_per_worker();
  result.recompute = options.recompute();
  result.recompute_by_stage = options.recompute_by_stage();
  result.optimizer_slots = options.optimizer_slots();
  if (options.memory_limit_bytes() > 0) result.memory_limit_bytes = options.memory_limit_bytes();
  result.rematerialize = !share_a_parameter(model.layers());
  result.search_seconds = options.search_seconds();
  result.search_seed = options.seed();
  // Each rank has been given its inputs or its targets already.
  result.search_keeps_ends = !is_alone;
  return result;
}

}  // namespace

Profile measure_layers(const Model& model, const PipelineOptions& options, Workers& workers, const MicroBatch& sample,
                       const StageLoss& loss) {
  ProfileOptions wanted;
  wanted.seed = options.seed();
  wanted.repeats = 3;
  wanted.budget_seconds = 2;
  wanted.count_bytes = options.measure_memory() || options.recompute() == Recompute::kAuto;
  wanted.deferred_weights = options.deferred_weights();
  wanted.fixed_seconds = options.profile_fixed_seconds() && sample.num_samples > 1;
  const ProfileSample profiled = make_profile_sample(sample, options.replicated_inputs(), wanted);
  bool in_loss = false;
  if (loss) {
    wanted.loss = [&](const Tensors& outputs) {
      in_loss = true;
      LayerRun run;
      run.seed = options.seed();
      run.layer = model.num_layers();
      const LayerScope scope(run);
      return loss(0, outputs);
    };
  }
  try {
    return profile_on_worker(model, wanted, workers, profiled);
  } catch (const ActionError&) {
    if (!in_loss) throw;
  }
  wanted.loss = {};  // what it throws, the step itself will throw, and say more about it
  return profile_on_worker(model, wanted, workers, profiled);
}

void choose_stages(Cut& cut, const Model& model, const PipelineOptions& options, bool is_alone) {
  if (options.custom_schedule()) {
    const Schedule schedule = schedule_for(options, options.num_micro_batches());
    for (const PartitionStage& stage : partition_for(cut.profile, schedule, {}).stages) {
      cut.layers_per_stage.push_back(stage.num_layers);
    }
    return;
  }
  PlanOptions wanted = plan_options(model, options, is_alone);
  const bool leaves_recompute = wanted.recompute == Recompute::kAuto;
  Plan chosen;
  try {
    chosen = plan(cut.profile, wanted);
  } catch (const InfeasibleError&) {
    if (leaves_recompute) throw;
    wanted.memory_limit_bytes.reset();  // a prediction: the step itself will show whether it fits
    chosen = plan(cut.profile, wanted);
  }
  cut.layers_per_stage = chosen.layers_per_stage;
  if (is_searched(options)) cut.order = schedule_of(chosen);
  if (!leaves_recompute) return;
  cut.rematerialization = chosen.rematerialization;
  cut.recompute_by_stage = chosen.recompute_by_stage;
  if (cut.recompute_by_stage.empty()) cut.recompute_by_stage.assign(cut.layers_per_stage.size(), chosen.recompute);
}

}  // namespace gpipe::detail
