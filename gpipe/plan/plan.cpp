#include "gpipe/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/given_partition.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/require.h"

namespace gpipe {
namespace {

using detail::LongSchedule;
using detail::make_long_schedule;
using detail::options_for_schedule;
using detail::partition_of;
using detail::peak_live_by_stage;
using detail::recompute_share;
using detail::recomputed;
using detail::require;
using detail::saturated;
using detail::WideBytes;
using detail::with_recompute;
using detail::written_out;

template <typename AnySchedule>
AnySchedule with_modes(AnySchedule schedule, Recompute mode, const std::vector<Recompute>& by_stage) {
  return by_stage.empty() ? with_recompute(std::move(schedule), mode) : with_recompute(std::move(schedule), by_stage);
}

LongSchedule schedule_for(const PlanOptions& options, int num_workers) {
  return with_modes(make_long_schedule(options.schedule, num_workers, options.num_micro_batches, options.chunks),
                    options.recompute, options.recompute_by_stage);
}

int chunks_of(const PlanOptions& options) {
  const ScheduleInfo& info = find_schedule(options.schedule);
  return options.chunks > 0 ? options.chunks : info.default_chunks;
}

// What helps if the schedule has more stages than there are layers.
std::string remedy_for_few_layers(const PlanOptions& options, std::int64_t num_layers, int chunks) {
  std::string remedy;
  if (num_layers >= chunks) remedy += fmt::format("ask for at most {} workers, ", num_layers / chunks);
  if (chunks > 1 && options.num_stages <= num_layers) {
    remedy += fmt::format("take {}, which puts one stage on each, ",
                          with_one_stage_a_worker(find_schedule(options.schedule)).name);
  }
  return remedy + (remedy.empty() ? "split layers" : "or split layers");
}

void check(const Profile& profile, const PlanOptions& options, int chunks) {
  check_profile(profile);
  const std::int64_t num_layers = static_cast<std::int64_t>(profile.layers.size());
  const std::int64_t num_stages = std::int64_t{options.num_stages} * chunks;
  if (num_stages > num_layers) {
    throw InvalidArgument(fmt::format(
        "schedule \"{}\" puts {} {} on each of {} workers, and the profile has {} layers for these {} stages; {}",
        options.schedule, chunks, chunks == 1 ? "stage" : "stages", options.num_stages, num_layers, num_stages,
        remedy_for_few_layers(options, num_layers, chunks)));
  }
  check_workers(options.workers, options.num_stages, "workers");
}

// The profile with the backward the schedule runs: a split one takes the sum of its parts.
Profile as_run(Profile profile, const Schedule& schedule) {
  if (!schedule.splits_backward()) return profile;
  for (LayerProfile& layer : profile.layers) {
    layer.backward_seconds = input_grad_seconds(layer) + weight_grad_seconds(layer);
    layer.fixed_backward_seconds.reset();  // a part of the whole one
  }
  return profile;
}

// Of a micro-batch `factor` times as large.
double scaled_seconds(double seconds, double fixed_seconds, double factor) {
  return fixed_seconds + std::max(0.0, seconds - fixed_seconds) * factor;
}

// The error of `partition`, in workers and with what else there is to say.
InfeasibleError in_workers(const InfeasibleError& error, const PlanOptions& options, const Schedule& schedule,
                           std::optional<int> gave_up_at) {
  const int chunks = schedule.num_stages / schedule.num_workers();
  const int num_workers = error.smallest_num_stages() / chunks;
  const int worker = schedule.worker_of_stage[error.stage()];
  std::string what = error.what();
  if (chunks > 1) {
    what += fmt::format(
        "{}; schedule \"{}\" puts {} stages on each worker, and stage {} gets 1/{} of the limit of worker {}, {} bytes",
        num_workers == 0 ? "" : fmt::format(", on {} workers", num_workers), options.schedule, chunks, error.stage(),
        chunks, worker, options.memory_limit_of(worker));
  } else if (!options.workers.empty()) {
    what += fmt::format("; stage {} is on worker {}", error.stage(), worker);
  }
  if (num_workers == 0 && gave_up_at) {
    what += fmt::format("; the search for it ended at {} workers, more may fit", *gave_up_at);
  }
  return InfeasibleError(what, error.missing_bytes(), num_workers, error.stage());
}

PartitionOptions partition_options(const PlanOptions& options, const LongSchedule& schedule, int chunks) {
  PartitionOptions result;
  result.objective = options.objective;
  result.link = options.link;
  result.workers = workers_by_stage(options.workers, options.link, schedule.written.worker_of_stage);
  if (options.memory_limit_bytes) result.memory_limit_bytes = *options.memory_limit_bytes / chunks;
  result.optimizer_slots = options.optimizer_slots;
  return result;
}

Plan make_plan(const Profile& profile, const PlanOptions& options, int chunks, Partition partition) {
  Plan result;
  result.schedule = options.schedule;
  result.chunks = chunks;
  result.num_micro_batches = options.num_micro_batches;
  result.recompute = options.recompute_by_stage.empty() ? options.recompute : Recompute::kAuto;
  result.recompute_by_stage = options.recompute_by_stage;
  result.partition = std::move(partition);
  for (const PartitionStage& stage : result.partition.stages) result.layers_per_stage.push_back(stage.num_layers);
  result.costs = stage_costs(profile, result.layers_per_stage, options.link, options.optimizer_slots);
  result.costs.workers = options.workers;
  return result;
}

}  // namespace

bool PlanOptions::has_memory_limit() const {
  return memory_limit_bytes || std::any_of(workers.begin(), workers.end(), [](const WorkerCosts& worker) {
           return worker.memory_limit_bytes.has_value();
         });
}

Schedule schedule_of(const Plan& plan) {
  if (plan.order) return *plan.order;
  return with_modes(make_schedule(plan.schedule, plan.num_workers(), plan.num_micro_batches, plan.chunks),
                    plan.recompute, plan.recompute_by_stage);
}

LongSchedule detail::long_schedule_of(const Plan& plan) {
  if (plan.order) return written_out(*plan.order);
  return with_modes(make_long_schedule(plan.schedule, plan.num_workers(), plan.num_micro_batches, plan.chunks),
                    plan.recompute, plan.recompute_by_stage);
}

PartitionOptions detail::options_for_schedule(PartitionOptions options, const Schedule& schedule) {
  LongSchedule long_schedule;
  long_schedule.written = schedule;
  long_schedule.num_micro_batches = schedule.num_micro_batches;
  long_schedule.is_recomputed = recomputed(schedule);
  return options_for_schedule(std::move(options), long_schedule);
}

PartitionOptions detail::options_for_schedule(PartitionOptions options, const LongSchedule& schedule) {
  options.num_stages = schedule.num_stages();
  options.num_micro_batches = static_cast<int>(schedule.num_micro_batches);
  options.backward = schedule.written.has_backward();
  options.recompute_share = recompute_share(schedule);
  options.live = peak_live_by_stage(schedule);
  return options;
}

Partition partition_for(const Profile& profile, const Schedule& schedule, const PartitionOptions& options) {
  return partition(as_run(profile, schedule), options_for_schedule(options, schedule));
}

Plan partitioned_plan(const Profile& profile, const PlanOptions& options, bool find_smallest) {
  const int chunks = chunks_of(options);
  check(profile, options, chunks);
  const LongSchedule schedule = schedule_for(options, options.num_stages);
  PartitionOptions for_partition = partition_options(options, schedule, chunks);
  // Schedules for other numbers of workers are made until that has taken some seconds.
  constexpr std::int64_t kMostActionsMade = 40'000'000;
  std::int64_t num_actions = 0;
  int largest_num_workers = 0;
  for_partition.live_for = [&](int num_stages) -> std::vector<std::vector<Live>> {
    const bool is_looked_for = find_smallest && options.recompute_by_stage.empty() && num_actions <= kMostActionsMade;
    if (!is_looked_for || num_stages % chunks != 0) return {};
    try {
      const LongSchedule other = schedule_for(options, num_stages / chunks);
      num_actions += other.written.num_actions();
      largest_num_workers = other.num_workers();
      return peak_live_by_stage(other);
    } catch (const InvalidArgument&) {  // there is no such schedule
      return {};
    }
  };
  try {
    return make_plan(profile, options, chunks,
                     partition(as_run(profile, schedule.written), options_for_schedule(for_partition, schedule)));
  } catch (const InfeasibleError& error) {
    throw in_workers(error, options, schedule.written,
                     num_actions > kMostActionsMade ? std::optional(largest_num_workers) : std::nullopt);
  }
}

Plan plan_with_layers(const Profile& profile, const PlanOptions& options, const std::vector<int>& layers_per_stage) {
  const int chunks = chunks_of(options);
  check(profile, options, chunks);
  const LongSchedule schedule = schedule_for(options, options.num_stages);
  const PartitionOptions for_partition = options_for_schedule(partition_options(options, schedule, chunks), schedule);
  return make_plan(profile, options, chunks,
                   partition_of(as_run(profile, schedule.written), layers_per_stage, for_partition));
}

Plan detail::plan_with_order(const Profile& profile, const PlanOptions& options, Schedule order,
                             const std::vector<int>& layers_per_stage) {
  const int chunks = order.num_stages / order.num_workers();
  const LongSchedule schedule = written_out(order);
  const PartitionOptions for_partition = options_for_schedule(partition_options(options, schedule, chunks), schedule);
  Plan plan =
      make_plan(profile, options, chunks, partition_of(as_run(profile, order), layers_per_stage, for_partition));
  plan.schedule = order.name;
  plan.order = std::move(order);
  return plan;
}

LayerProfile with_scaled_seconds(LayerProfile layer, double factor) {
  const double fixed_backward = layer.fixed_backward_seconds.value_or(0);
  const double whole = layer.backward_seconds;
  // A part of the backward has its share of what is fixed.
  for (std::optional<double>* part : {&layer.input_grad_seconds, &layer.weight_grad_seconds}) {
    if (!*part) continue;
    const double share = whole > 0 ? std::min(1.0, **part / whole) : 0;
    *part = scaled_seconds(**part, share * fixed_backward, factor);
  }
  layer.forward_seconds = scaled_seconds(layer.forward_seconds, layer.fixed_forward_seconds.value_or(0), factor);
  layer.backward_seconds = scaled_seconds(whole, fixed_backward, factor);
  return layer;
}

Profile for_micro_batches(const Profile& profile, int mini_batch_samples, int num_micro_batches) {
  check_profile(profile);
  const int measured = profile.samples_per_micro_batch;
  require(measured != 0,
          "the profile does not say how many samples its micro-batch had; add samples_per_micro_batch to it, or leave "
          "the mini-batch's samples out and give the number of micro-batches");
  require(num_micro_batches >= 1 && mini_batch_samples >= num_micro_batches,
          "{} samples cannot be split into {} micro-batches; expected 1 to {}", mini_batch_samples, num_micro_batches,
          mini_batch_samples);
  const int largest = (mini_batch_samples - 1) / num_micro_batches + 1;
  const double factor = static_cast<double>(mini_batch_samples) / num_micro_batches / measured;
  const auto scaled = [&](std::int64_t bytes) {  // rounded up
    return saturated((WideBytes{bytes} * largest + measured - 1) / measured);
  };
  Profile result = profile;
  result.samples_per_micro_batch = largest;
  for (LayerProfile& layer : result.layers) {
    layer = with_scaled_seconds(std::move(layer), factor);
    for (std::int64_t* bytes :
         {&layer.activation_bytes, &layer.output_bytes, &layer.kept_output_bytes, &layer.deferred_output_bytes}) {
      *bytes = scaled(*bytes);
    }
    for (std::optional<std::int64_t>* bytes :
         {&layer.forward_working_bytes, &layer.backward_working_bytes, &layer.deferred_bytes,
          &layer.input_grad_working_bytes, &layer.weight_grad_working_bytes}) {
      if (*bytes) *bytes = scaled(**bytes);
    }
  }
  for (SkipProfile& skip : result.skips) skip.bytes = scaled(skip.bytes);
  return result;
}

}  // namespace gpipe
