// Plan: layers per stage for a schedule, with the predicted time and bytes of each stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/partition.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct PlanOptions {
  int num_stages = 1;  // workers; the schedule puts `chunks` stages on each
  int num_micro_batches = 1;
  std::string schedule = "1f1b";
  int chunks = 0;  // 0 = the schedule's default
  Recompute recompute = Recompute::kNever;
  Objective objective = Objective::kMakespan;
  LinkCosts link;
  std::vector<double> worker_speed;                // one per worker; empty = 1 for all
  std::optional<std::int64_t> memory_limit_bytes;  // per worker
  int optimizer_slots = 2;
};

struct Plan {
  std::string schedule;
  int chunks = 1;
  int num_micro_batches = 1;
  Recompute recompute = Recompute::kNever;
  std::vector<int> layers_per_stage;
  Partition partition;  // predicted seconds and bytes of each stage
  Costs costs;          // of the stages, for the simulator
};

// The best partition for what the schedule does: a stage's time counts the forwards it recomputes, the two parts of a
// backward that the schedule splits, and no backward if there is none; its bytes count the micro-batches it holds.
//
// With several stages a worker, each stage gets an equal part of the worker's memory limit: what is found fits, but a
// worker with a large and a small stage is not tried. The objective is over stages, and counts a message between two
// stages of one worker like any other.
//
// Throws as `make_schedule` and `partition` do. InfeasibleError counts workers in smallest_num_stages, and the bytes
// that one stage lacks in missing_bytes. Finding that number makes a schedule for each that could be it; after some
// seconds of that it gives up, and says up to which number it looked.
Plan plan(const Profile& profile, const PlanOptions& options);

// What stages made of `layers_per_stage` consecutive layers cost. Throws InvalidArgument if they do not add up.
Costs stage_costs(const Profile& profile, const std::vector<int>& layers_per_stage, const LinkCosts& link,
                  int optimizer_slots);

// The best partition for a schedule of any origin: takes from it what `plan` would, and the rest (link, speeds, memory
// limit, objective, optimizer slots) from `options`. REQUIRES: rule 1 of `validate`.
Partition partition_for(const Profile& profile, const Schedule& schedule, PartitionOptions options);

}  // namespace gpipe
