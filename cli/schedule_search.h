// 'gpipe schedule search': its options, and what it reports beside the schedule.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/schedule_options.h"
#include "gpipe/plan/plan.h"

namespace gpipe::cli {

struct SearchOptions {
  std::string profile;
  std::string workers;
  PlanOptions options;  // what is not in the schedule's own
  std::string plan;     // a file to write

  // Whether one of them was given.
  bool any(const CLI::App& command) const;
};

void add_search_options(CLI::App& command, SearchOptions& options);

// Throws UsageError unless what a search needs is there.
void check_usage(const ScheduleOptions& schedule, const SearchOptions& options, bool force);

// What was found. Reports on standard error, with progress where that is a terminal, and writes the plan.
Plan search_schedule(const ScheduleOptions& schedule, const SearchOptions& options, bool force);

}  // namespace gpipe::cli
