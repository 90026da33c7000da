#include "gpipe/plan/plan.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/backward_parts.h"
#include "gpipe/plan/long_plan.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"

namespace gpipe {
namespace {

LongSchedule schedule_for(const PlanOptions& options, int num_workers) {
  const LongSchedule schedule =
      make_long_schedule(options.schedule, num_workers, options.num_micro_batches, options.chunks);
  return options.recompute_by_stage.empty() ? with_recompute(schedule, options.recompute)
                                            : with_recompute(schedule, options.recompute_by_stage);
}

int chunks_of(const PlanOptions& options) {
  const ScheduleInfo& info = find_schedule(options.schedule);
  return options.chunks > 0 ? options.chunks : info.default_chunks;
}

void check(const Profile& profile, const PlanOptions& options, int chunks) {
  check_profile(profile);
  const std::int64_t num_layers = static_cast<std::int64_t>(profile.layers.size());
  const std::int64_t num_stages = std::int64_t{options.num_stages} * chunks;
  if (num_stages > num_layers) {
    throw InvalidArgument(
        fmt::format("schedule \"{}\" puts {} {} on each of {} workers, and the profile has {} layers for these {} "
                    "stages; ask for at "
                    "most {} workers, or split layers",
                    options.schedule, chunks, chunks == 1 ? "stage" : "stages", options.num_stages, num_layers,
                    num_stages, num_layers / chunks));
  }
  if (!options.worker_speed.empty() && options.worker_speed.size() != static_cast<std::size_t>(options.num_stages)) {
    throw InvalidArgument(fmt::format("worker_speed has {} entries for {} workers; expected one per worker, or none",
                                      options.worker_speed.size(), options.num_stages));
  }
}

// The profile with the backward the schedule runs: a split one takes the sum of its parts.
Profile as_run(Profile profile, const Schedule& schedule) {
  if (!schedule.splits_backward()) return profile;
  for (LayerProfile& layer : profile.layers) {
    const BackwardParts parts = backward_parts(layer);
    layer.backward_seconds = parts.input_grad_seconds + parts.weight_grad_seconds;
  }
  return profile;
}

// Asked for what the stages of schedules for other numbers of workers hold, until that has taken some seconds.
class OtherSizes {
 public:
  OtherSizes(const PlanOptions& options, int chunks) : options_(options), chunks_(chunks) {}

  // Empty if there is no such schedule, or no time.
  std::vector<std::vector<Live>> live(int num_stages) {
    if (num_stages % chunks_ != 0 || num_actions_ > kMaxActions || !options_.recompute_by_stage.empty()) return {};
    try {
      const LongSchedule schedule = schedule_for(options_, num_stages / chunks_);
      num_actions_ += schedule.written.num_actions();
      largest_num_workers_ = schedule.num_workers();
      return peak_live_by_stage(schedule);
    } catch (const InvalidArgument&) {
      return {};
    }
  }

  bool gave_up() const { return num_actions_ > kMaxActions; }
  int largest_num_workers() const { return largest_num_workers_; }

 private:
  static constexpr std::int64_t kMaxActions = 40'000'000;
  const PlanOptions& options_;
  const int chunks_;
  std::int64_t num_actions_ = 0;
  int largest_num_workers_ = 0;
};

// The error of `partition`, in workers and with what else there is to say.
InfeasibleError in_workers(const InfeasibleError& error, const PlanOptions& options, int chunks,
                           const OtherSizes& others) {
  const int num_workers = error.smallest_num_stages() / chunks;
  std::string what = error.what();
  if (chunks > 1) {
    what += fmt::format(
        "{}; schedule \"{}\" puts {} stages on each worker, and each gets 1/{} of the worker's limit of {} bytes",
        num_workers == 0 ? "" : fmt::format(", on {} workers", num_workers), options.schedule, chunks, chunks,
        *options.memory_limit_bytes);
  }
  if (num_workers == 0 && others.gave_up()) {
    what += fmt::format("; the search for it ended at {} workers, more may fit", others.largest_num_workers());
  }
  return InfeasibleError(what, error.missing_bytes(), num_workers);
}

PartitionOptions partition_options(const PlanOptions& options, const LongSchedule& schedule, int chunks) {
  PartitionOptions result;
  result.objective = options.objective;
  result.link = options.link;
  if (!options.worker_speed.empty()) {
    for (const int worker : schedule.written.worker_of_stage)
      result.worker_speed.push_back(options.worker_speed[worker]);
  }
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
  result.costs.worker_speed = options.worker_speed;
  return result;
}

}  // namespace

Schedule schedule_of(const Plan& plan) {
  Schedule schedule = make_schedule(plan.schedule, plan.num_workers(), plan.num_micro_batches, plan.chunks);
  return plan.recompute_by_stage.empty() ? with_recompute(std::move(schedule), plan.recompute)
                                         : with_recompute(std::move(schedule), plan.recompute_by_stage);
}

LongSchedule long_schedule_of(const Plan& plan) {
  const LongSchedule schedule =
      make_long_schedule(plan.schedule, plan.num_workers(), plan.num_micro_batches, plan.chunks);
  return plan.recompute_by_stage.empty() ? with_recompute(schedule, plan.recompute)
                                         : with_recompute(schedule, plan.recompute_by_stage);
}

PartitionOptions options_for_schedule(PartitionOptions options, const Schedule& schedule) {
  LongSchedule long_schedule;
  long_schedule.written = schedule;
  long_schedule.num_micro_batches = schedule.num_micro_batches;
  long_schedule.is_recomputed = recomputed(schedule);
  return options_for_schedule(std::move(options), long_schedule);
}

PartitionOptions options_for_schedule(PartitionOptions options, const LongSchedule& schedule) {
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
  OtherSizes others(options, chunks);
  PartitionOptions for_partition = partition_options(options, schedule, chunks);
  for_partition.live_for = [&](int num_stages) {
    return find_smallest ? others.live(num_stages) : std::vector<std::vector<Live>>();
  };
  try {
    return make_plan(profile, options, chunks,
                     partition(as_run(profile, schedule.written), options_for_schedule(for_partition, schedule)));
  } catch (const InfeasibleError& error) {
    throw in_workers(error, options, chunks, others);
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

}  // namespace gpipe
