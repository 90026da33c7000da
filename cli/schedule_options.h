// The options that say which schedule: its name, its size, its recompute mode.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "gpipe/schedule/recompute.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::cli {

struct ScheduleOptions {
  std::string name;
  std::optional<int> num_workers;  // --stages: the depth of the pipeline
  std::optional<int> num_micro_batches;
  std::optional<int> chunks;
  std::optional<Recompute> recompute;
};

// --stages, --micro-batches, --chunks and --recompute; the name stands elsewhere in each command.
void add_size_options(CLI::App& command, ScheduleOptions& options);
// The same for a command that can choose: --micro-batches auto is 0, --recompute auto is kAuto.
void add_open_size_options(CLI::App& command, ScheduleOptions& options);

// Throws UsageError unless the name, --stages and --micro-batches are there.
void require_schedule(const ScheduleOptions& options);

// The schedule by name, with its recompute actions. Throws what `require_schedule` and `make_schedule` throw.
Schedule make_schedule(const ScheduleOptions& options);

// Throws UsageError, naming both numbers, if a size is given that `schedule`, read from `file`, does not have.
void require_same_size(const ScheduleOptions& options, const Schedule& schedule, const std::string& file);

// "gpipe, 1f1b, ..."
std::string schedule_names();

}  // namespace gpipe::cli
