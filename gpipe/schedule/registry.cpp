#include "gpipe/schedule/registry.h"

#include <fmt/format.h>

#include "gpipe/error.h"
#include "gpipe/schedule/generators.h"
#include "gpipe/text/nearest_name.h"
#include "gpipe/text/require.h"

namespace gpipe {

using detail::nearest_name;
using detail::require;

const std::vector<ScheduleInfo>& schedule_registry() {
  static const std::vector<ScheduleInfo> registry = {
      {"gpipe", "all forwards, then all backwards (GPipe)", 1, 0,
       [](int k, int m, int) { return schedules::gpipe(k, m); }},
      {"1f1b", "one forward, one backward: at most K micro-batches in flight", 1, 0,
       [](int k, int m, int) { return schedules::one_f_one_b(k, m); }},
      {"interleaved", "1F1B over several chunks a worker: a v-th of the bubble, more communication", 2, 1,
       [](int k, int m, int v) { return schedules::interleaved(k, m, v); }},
      {"hanayo", "waves, chunks in V after V: interleaved's bubble, no messages at the turns", 2, 2,
       [](int k, int m, int v) { return schedules::hanayo(k, m, v); }},
      {"looped-bfs", "GPipe over several chunks a worker, breadth first", 2, 1,
       [](int k, int m, int v) { return schedules::looped_bfs(k, m, v); }},
      {"zb-h1", "zero bubble H1: a third of 1F1B's bubble at its memory", 1, 0,
       [](int k, int m, int) { return schedules::zb_h1(k, m); }},
      {"zb-h2", "zero bubble H2: no bubble inside, twice 1F1B's memory", 1, 0,
       [](int k, int m, int) { return schedules::zb_h2(k, m); }},
      {"zb-v", "zero bubble V: no bubble inside, 1F1B's memory, two chunks a worker", 2, 0,
       [](int k, int m, int) { return schedules::zb_v(k, m); }},
      {"v-half", "V with half of 1F1B's memory and half of its bubble", 2, 0,
       [](int k, int m, int) { return schedules::v_half(k, m); }},
      {"v-min", "V with a third of 1F1B's memory and two thirds of its bubble", 2, 0,
       [](int k, int m, int) { return schedules::v_min(k, m); }},
      {"dualpipe-v", "V with forwards beside whole backwards, and split ones at both ends", 2, 0,
       [](int k, int m, int) { return schedules::dualpipe_v(k, m); }},
      {"forward", "forwards only, for evaluation", 1, 0,
       [](int k, int m, int) { return schedules::forward_only(k, m); }},
  };
  return registry;
}

bool takes_chunks(const ScheduleInfo& info, int chunks) {
  return info.chunks_step == 0 ? chunks == info.default_chunks : chunks % info.chunks_step == 0;
}

std::string valid_chunks(const ScheduleInfo& info) {
  if (info.chunks_step == 0) return fmt::format("{}", info.default_chunks);
  return info.chunks_step == 1 ? "any number" : fmt::format("a multiple of {}", info.chunks_step);
}

std::vector<std::string> training_schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_registry()) {
    if (info.generate(1, 1, info.default_chunks).has_backward()) names.emplace_back(info.name);
  }
  return names;
}

const ScheduleInfo& with_one_stage_a_worker(const ScheduleInfo& info) {
  if (info.default_chunks == 1) return info;
  return find_schedule(info.generate(2, 2, info.default_chunks).splits_backward() ? "zb-h1" : "1f1b");
}

const ScheduleInfo& find_schedule(std::string_view name) {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedule_registry()) names.emplace_back(info.name);
  return find_schedule(name, names);
}

const ScheduleInfo& find_schedule(std::string_view name, const std::vector<std::string>& offered) {
  for (const ScheduleInfo& info : schedule_registry()) {
    if (name == info.name) return info;
  }
  const std::string nearest = nearest_name(name, offered);
  throw InvalidArgument(fmt::format("there is no schedule \"{}\"{} The schedules are {}", name,
                                    nearest.empty() ? "." : fmt::format(": did you mean {}?", nearest),
                                    fmt::join(offered, ", ")));
}

Schedule make_schedule(std::string_view name, int num_workers, int num_micro_batches, int chunks) {
  const ScheduleInfo& info = find_schedule(name);
  if (chunks == 0) chunks = info.default_chunks;
  require(takes_chunks(info, chunks),
          "{}: chunks must be {}, got {}; interleaved and looped-bfs take any number of them", info.name,
          valid_chunks(info), chunks);
  return info.generate(num_workers, num_micro_batches, chunks);
}

}  // namespace gpipe
