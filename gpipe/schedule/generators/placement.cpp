#include "gpipe/schedule/generators/placement.h"

#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"

namespace gpipe::schedules {

Schedule empty_schedule(const char* name, int num_workers, int num_micro_batches, int chunks) {
  const auto check = [&](const char* what, int count) {
    if (count < 1) throw InvalidArgument(fmt::format("{}: {} must be at least 1, got {}", name, what, count));
  };
  check("stages", num_workers);
  check("micro-batches", num_micro_batches);
  check("chunks", chunks);
  if (static_cast<std::int64_t>(num_workers) * chunks > kMaxStages) {
    throw InvalidArgument(
        fmt::format("{}: {} stages x {} chunks; the limit is {} in all", name, num_workers, chunks, kMaxStages));
  }
  // F, I and W of every stage and micro-batch; in floating point, so that no product overflows.
  const double num_actions = 3.0 * num_workers * num_micro_batches * chunks;
  if (num_actions > static_cast<double>(kMaxActions)) {
    throw InvalidArgument(
        fmt::format("{}: {} stages x {} micro-batches x {} chunks may take {:.0f} actions; the limit is {}", name,
                    num_workers, num_micro_batches, chunks, num_actions, kMaxActions));
  }
  Schedule schedule;
  schedule.name = name;
  schedule.num_stages = num_workers * chunks;
  schedule.num_micro_batches = num_micro_batches;
  schedule.worker_of_stage.resize(schedule.num_stages);
  schedule.workers.resize(num_workers);
  return schedule;
}

Schedule loop_schedule(const char* name, int num_workers, int num_micro_batches, int chunks) {
  Schedule schedule = empty_schedule(name, num_workers, num_micro_batches, chunks);
  for (int stage = 0; stage < schedule.num_stages; ++stage) schedule.worker_of_stage[stage] = stage % num_workers;
  return schedule;
}

Schedule v_schedule(const char* name, int num_workers, int num_micro_batches) {
  Schedule schedule = empty_schedule(name, num_workers, num_micro_batches, 2);
  for (int worker = 0; worker < num_workers; ++worker) {
    schedule.worker_of_stage[worker] = worker;
    schedule.worker_of_stage[2 * num_workers - 1 - worker] = worker;
  }
  return schedule;
}

}  // namespace gpipe::schedules
