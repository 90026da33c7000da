#include "gpipe/plan/plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
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

// What the stages of a schedule for another number of workers hold; empty if there is no such schedule.
std::vector<std::vector<Live>> live_for(const PlanOptions& options, int chunks, int num_stages) {
  if (num_stages % chunks != 0) return {};
  try {
    return peak_live_by_stage(schedule_for(options, num_stages / chunks));
  } catch (const InvalidArgument&) {
    return {};
  }
}

PartitionOptions partition_options(const PlanOptions& options, const Schedule& schedule, int chunks) {
  PartitionOptions result;
  result.num_stages = schedule.num_stages;
  result.num_micro_batches = options.num_micro_batches;
  result.objective = options.objective;
  result.backward = schedule.has_backward();
  result.recompute_share = recompute_share(schedule);
  result.link = options.link;
  if (!options.worker_speed.empty()) {
    for (const int worker : schedule.worker_of_stage) result.worker_speed.push_back(options.worker_speed[worker]);
  }
  if (options.memory_limit_bytes) result.memory_limit_bytes = *options.memory_limit_bytes / chunks;
  result.live = peak_live_by_stage(schedule);
  result.live_for = [&options, chunks](int num_stages) { return live_for(options, chunks, num_stages); };
  result.optimizer_slots = options.optimizer_slots;
  return result;
}

}  // namespace

Plan plan(const Profile& profile, const PlanOptions& options) {
  const int chunks = chunks_of(options);
  check(profile, options, chunks);
  const Schedule schedule = schedule_for(options, options.num_stages);
  Plan result;
  result.schedule = options.schedule;
  result.chunks = chunks;
  result.num_micro_batches = options.num_micro_batches;
  result.recompute = options.recompute;
  try {
    result.partition = partition(as_run(profile, schedule), partition_options(options, schedule, chunks));
  } catch (const InfeasibleError& error) {
    if (chunks == 1) throw;
    const int num_workers = error.smallest_num_stages() / chunks;
    throw InfeasibleError(
        fmt::format(
            "{}{}; schedule \"{}\" puts {} stages on each worker, and each gets 1/{} of the worker's limit of {} bytes",
            error.what(), num_workers == 0 ? "" : fmt::format(", on {} workers", num_workers), options.schedule, chunks,
            chunks, *options.memory_limit_bytes),
        error.missing_bytes(), num_workers);
  }
  for (const PartitionStage& stage : result.partition.stages) result.layers_per_stage.push_back(stage.num_layers);
  result.costs = stage_costs(profile, result.layers_per_stage, options.link, options.optimizer_slots);
  result.costs.worker_speed = options.worker_speed;
  return result;
}

std::string to_json(const Plan& plan) {
  using Json = nlohmann::ordered_json;
  const auto text = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::vector<std::string> stages;
  for (const PartitionStage& stage : plan.partition.stages) {
    stages.push_back(text({{"layers", stage.num_layers}, {"seconds", stage.seconds}, {"bytes", stage.bytes}}));
  }
  const std::vector<std::pair<const char*, std::string>> fields = {
      {"schedule", text(plan.schedule)},
      {"chunks", text(plan.chunks)},
      {"num_micro_batches", text(plan.num_micro_batches)},
      {"recompute", text(name(plan.recompute))},
      {"layers_per_stage", text(plan.layers_per_stage)},
      {"stages", fmt::format("[\n    {}\n  ]", fmt::join(stages, ",\n    "))},
      {"slowest_seconds", text(plan.partition.slowest_seconds)},
      {"makespan", text(plan.partition.makespan_seconds)},
  };
  std::vector<std::string> lines;
  for (const auto& [field, value] : fields) lines.push_back(fmt::format("  \"{}\": {}", field, value));
  return fmt::format("{{\n{}\n}}\n", fmt::join(lines, ",\n"));
}

}  // namespace gpipe
