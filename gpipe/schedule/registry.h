// The schedules by name: a schedule is added here in one line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

struct ScheduleInfo {
  const char* name;     // as on the command line: "1f1b"
  const char* summary;  // one line for people
  int default_chunks;   // stages a worker
  int chunks_step;      // a worker may have any multiple of it as stages; 0: default_chunks is the only value
  Schedule (*generate)(int num_workers, int num_micro_batches, int chunks);
};

const std::vector<ScheduleInfo>& schedule_registry();

// Whether a worker can have so many stages; and how many it can have: "2", "any number", "a multiple of 2".
bool takes_chunks(const ScheduleInfo& info, int chunks);
std::string valid_chunks(const ScheduleInfo& info);

// The names of those that have a backward.
std::vector<std::string> training_schedule_names();

// The one with a single stage a worker that is most like `info`: for models with too few layers for several.
const ScheduleInfo& with_one_stage_a_worker(const ScheduleInfo& info);

// Throws InvalidArgument for an unknown name, with the nearest of `offered` and all of these: what can be named in its
// place. Without them, all schedules are.
const ScheduleInfo& find_schedule(std::string_view name);
const ScheduleInfo& find_schedule(std::string_view name, const std::vector<std::string>& offered);

// `chunks` 0 means the schedule's default. Throws InvalidArgument for an unknown name or a value the schedule cannot
// take.
Schedule make_schedule(std::string_view name, int num_workers, int num_micro_batches, int chunks = 0);

}  // namespace gpipe
