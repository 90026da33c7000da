// Plan: layers per stage for a schedule, with the predicted time and bytes of each stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/partition.h"
#include "gpipe/plan/profile.h"
#include "gpipe/plan/rematerialization.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The name of a schedule that is searched for one model: see schedule_search.h.
constexpr const char* kSearchedSchedule = "search";

// What is left to choose (num_micro_batches 0, schedule "auto" or "search", Recompute::kAuto) is chosen by `plan`.
struct PlanOptions {
  int num_stages = 1;         // workers; the schedule puts `chunks` stages on each
  int num_micro_batches = 1;  // 0 = choose, which needs mini_batch_samples
  std::string schedule = "1f1b";
  int chunks = 0;  // 0 = the schedule's default, or choose if the schedule is
  Recompute recompute = Recompute::kNever;
  std::vector<Recompute> recompute_by_stage;  // empty = `recompute` for all
  // With kAuto and a memory limit, stages may drop the activations of some of their layers instead of all: see Plan.
  bool rematerialize = true;
  // If above 0, the costs are those of micro-batches of this mini-batch: see for_micro_batches.
  int mini_batch_samples = 0;
  Objective objective = Objective::kMakespan;
  LinkCosts link;
  std::optional<std::int64_t> memory_limit_bytes;  // of each worker
  std::vector<WorkerCosts> workers;                // one per worker, if they are not all alike; see link_between
  int optimizer_slots = 2;
  // Of a search: its work, about in seconds; what it draws by; whether the first stage stays on the first worker and
  // the last on the last, for programs that give inputs to the one and targets to the other. See search_schedules.
  double search_seconds = 20;
  std::uint64_t search_seed = 0;
  bool search_keeps_ends = false;

  // kNoMemoryLimit if there is none.
  std::int64_t memory_limit_of(int worker) const { return gpipe::memory_limit_of(workers, memory_limit_bytes, worker); }
  bool has_memory_limit() const;
};

// A plain value: every worker and every process can load the same one. See plan_json.h.
struct Plan {
  std::string schedule;
  int chunks = 1;
  int num_micro_batches = 1;
  Recompute recompute = Recompute::kNever;    // kAuto if the stages have modes of their own
  std::vector<Recompute> recompute_by_stage;  // empty = `recompute` for all
  std::vector<int> layers_per_stage;
  std::optional<Schedule> order;  // of one that was searched, with its recomputes; the others are known by their name
  // One per stage: which of its layers, counted from its first, drop their activations; none at all = all keep them.
  std::vector<Rematerialization> rematerialization;
  Partition partition;                             // predicted seconds and bytes of each stage
  Costs costs;                                     // of the stages, for the simulator
  double predicted_step_seconds = 0;               // simulated
  std::vector<std::int64_t> predicted_peak_bytes;  // per worker

  int num_workers() const { return static_cast<int>(layers_per_stage.size()) / chunks; }
};

// The schedule of a plan, with its recompute actions.
Schedule schedule_of(const Plan& plan);

// The best partition for what the schedule does: a stage's time counts the forwards it recomputes, the two parts of a
// backward that the schedule splits, and no backward if there is none; its bytes count the micro-batches it holds.
// Nothing is left to choose, and the step is not predicted: that is what `plan` does.
//
// With several stages a worker, each stage gets an equal part of the worker's memory limit: what is found fits, but a
// worker with a large and a small stage is not tried. The objective is over stages, and counts a message between two
// stages of one worker like any other unless the links of workers are given.
//
// Throws as `make_schedule` and `partition` do. InfeasibleError counts workers in smallest_num_stages, and the bytes
// that one stage lacks in missing_bytes. Finding that number makes a schedule for each that could be it; after some
// seconds of that it gives up, and says up to which number it looked. Without `find_smallest` it is not looked for, nor
// if workers have different limits.
Plan partitioned_plan(const Profile& profile, const PlanOptions& options, bool find_smallest = true);

// The same with a given partition, whatever the memory limit.
Plan plan_with_layers(const Profile& profile, const PlanOptions& options, const std::vector<int>& layers_per_stage);

// The layer with the seconds of a micro-batch `factor` times as large: all but the fixed ones grow with it. The two
// parts of the backward share what is fixed of it as they share the backward.
LayerProfile with_scaled_seconds(LayerProfile layer, double factor);

// The profile of a micro-batch when `mini_batch_samples` are split into that many: seconds that are not fixed,
// activations, working sets, outputs and skips grow with the number of samples, parameters and buffers do not. Bytes
// are those of the largest micro-batch, seconds those of the mean. Where a profile does not know the fixed seconds (see
// ProfileOptions::fixed_seconds), what a layer costs however small its input is counted too low in small micro-batches.
// Throws InvalidArgument unless profile.samples_per_micro_batch is known.
Profile for_micro_batches(const Profile& profile, int mini_batch_samples, int num_micro_batches);

// What stages made of `layers_per_stage` consecutive layers cost. Throws InvalidArgument if they do not add up.
Costs stage_costs(const Profile& profile, const std::vector<int>& layers_per_stage, const LinkCosts& link,
                  int optimizer_slots);

// The best partition for a schedule of any origin: takes from it what a plan would, and the rest (link, workers, memory
// limit, objective, optimizer slots) from `options`. REQUIRES: rule 1 of `validate`.
Partition partition_for(const Profile& profile, const Schedule& schedule, const PartitionOptions& options);

}  // namespace gpipe
