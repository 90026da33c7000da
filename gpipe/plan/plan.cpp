#include "gpipe/plan/plan.h"

#include <fmt/format.h>

#include <utility>

#include "gpipe/error.h"
#include "gpipe/plan/backward_parts.h"
#include "gpipe/schedule/liveness.h"
#include "gpipe/schedule/registry.h"

namespace gpipe {
namespace {

Schedule schedule_for(const PlanOptions& options, int num_workers) {
  return with_recompute(make_schedule(options.schedule, num_workers, options.num_micro_batches, options.chunks),
                        options.recompute);
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
  bool is_split = false;
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) is_split = is_split || action.kind == ActionKind::kInputGrad;
  }
  if (!is_split) return profile;
  for (LayerProfile& layer : profile.layers) {
    const BackwardParts parts = backward_parts(layer);
    layer.backward_seconds = parts.input_grad_seconds + parts.weight_grad_seconds;
  }
  return profile;
}

std::vector<double> recompute_share(const Schedule& schedule) {
  std::vector<double> share(schedule.num_stages, 0);
  for (const std::vector<Action>& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) share[action.stage] += 1;
    }
  }
  for (double& stage : share) stage /= schedule.num_micro_batches;
  return share;
}

// Asked for what the stages of schedules for other numbers of workers hold, until that has taken some seconds.
class OtherSizes {
 public:
  OtherSizes(const PlanOptions& options, int chunks) : options_(options), chunks_(chunks) {}

  // Empty if there is no such schedule, or no time.
  std::vector<std::vector<Live>> live(int num_stages) {
    if (num_stages % chunks_ != 0 || num_actions_ > kMaxActions) return {};
    try {
      const Schedule schedule = schedule_for(options_, num_stages / chunks_);
      num_actions_ += schedule.num_actions();
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

}  // namespace

Partition partition_for(const Profile& profile, const Schedule& schedule, PartitionOptions options) {
  options.num_stages = schedule.num_stages;
  options.num_micro_batches = schedule.num_micro_batches;
  options.backward = schedule.has_backward();
  options.recompute_share = recompute_share(schedule);
  options.live = peak_live_by_stage(schedule);
  return partition(as_run(profile, schedule), options);
}

Plan plan(const Profile& profile, const PlanOptions& options) {
  const int chunks = chunks_of(options);
  check(profile, options, chunks);
  const Schedule schedule = schedule_for(options, options.num_stages);
  OtherSizes others(options, chunks);
  PartitionOptions partition_options;
  partition_options.objective = options.objective;
  partition_options.link = options.link;
  if (!options.worker_speed.empty()) {
    for (const int worker : schedule.worker_of_stage) {
      partition_options.worker_speed.push_back(options.worker_speed[worker]);
    }
  }
  if (options.memory_limit_bytes) partition_options.memory_limit_bytes = *options.memory_limit_bytes / chunks;
  partition_options.live_for = [&others](int num_stages) { return others.live(num_stages); };
  partition_options.optimizer_slots = options.optimizer_slots;

  Plan result;
  result.schedule = options.schedule;
  result.chunks = chunks;
  result.num_micro_batches = options.num_micro_batches;
  result.recompute = options.recompute;
  try {
    result.partition = partition_for(profile, schedule, partition_options);
  } catch (const InfeasibleError& error) {
    throw in_workers(error, options, chunks, others);
  }
  for (const PartitionStage& stage : result.partition.stages) result.layers_per_stage.push_back(stage.num_layers);
  result.costs = stage_costs(profile, result.layers_per_stage, options.link, options.optimizer_slots);
  result.costs.worker_speed = options.worker_speed;
  return result;
}

}  // namespace gpipe
