// The options that say which schedule, and what its actions and messages cost; and a schedule in a few words, as every
// command's report begins.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/plan/costs.h"
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

// Seconds of a worker's whole share of the model, per micro-batch.
struct CostOptions {
  std::optional<double> forward_seconds;
  std::optional<double> backward_seconds;
  std::optional<double> input_grad_seconds;
  std::optional<double> weight_grad_seconds;
  std::optional<double> recompute_seconds;
  std::optional<double> update_seconds;      // once a step
  std::optional<std::int64_t> output_bytes;  // of one activation message

  bool any() const;
};

// All but the size of a message.
void add_cost_options(CLI::App& command, CostOptions& options);

// --link-latency and --link-bandwidth.
void add_link_options(CLI::App& command, LinkCosts& link);

// --workers, the path of a file for read_workers.
void add_workers_option(CLI::App& command, const char* group, std::string& path);

// What is not given follows from B = I + W: from B alone, I and W are a half each; from one of I and W alone, the other
// is 1; from B and one of them, the other is the rest. All three given are taken as they are. R costs what F costs.
// Throws UsageError if the rest is negative.
StageCosts worker_share(const CostOptions& options);

// "1 worker", "4 workers", "8 micro-batches"
std::string count_of(std::int64_t count, const std::string& thing);

// "4 workers, 8 stages, 8 micro-batches"
std::string describe_size(int num_workers, int num_stages, int num_micro_batches);

// "32 F, 32 B"
std::string count_kinds(const std::vector<std::vector<Action>>& workers);

}  // namespace gpipe::cli
