// What the workers of a schedule do with messages, written down without the library's game, and the schedules and
// routes that tests of message orders go through.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/message_order.h"
#include "gpipe/schedule/registry.h"

namespace gpipe::test {

// A message between workers that a worker puts or takes.
struct MessageStep {
  bool is_put;
  FlowMessage message;
};

// Of each worker, in program order.
using MessagePrograms = std::vector<std::vector<MessageStep>>;

inline MessagePrograms message_programs(const Schedule& schedule, const FlowTable& table) {
  MessagePrograms programs(schedule.num_workers());
  std::vector<int> weight_grads_left(schedule.num_stages, schedule.num_micro_batches);
  for (int worker = 0; worker < schedule.num_workers(); ++worker) {
    const auto add = [&](bool is_put, const std::vector<int>& flows, int micro_batch) {
      for (const int flow : flows) {
        if (table.is_local(flow)) continue;
        const bool is_tie = table.flows[flow].kind == FlowKind::kTie;
        programs[worker].push_back({is_put, {flow, is_tie ? 0 : micro_batch}});
      }
    };
    for (const Action& action : schedule.workers[worker]) {
      add(false, table.inputs(action), action.micro_batch);
      add(true, table.outputs(action), action.micro_batch);
      if (!makes_weight_grad(action.kind) || --weight_grads_left[action.stage] > 0) continue;
      add(true, table.stages[action.stage].step_outputs, 0);
    }
    add(false, table.step_inputs[worker], 0);
  }
  return programs;
}

// Skips and ties between different stages, each once: none, one kind, the other, both.
inline std::vector<Routes> all_routes(const Schedule& schedule) {
  const int last = schedule.num_stages - 1;
  const int middle = schedule.num_stages / 2;
  Routes routes = {{{0, last}}, {{0, last}}};
  if (middle < last) {
    routes.skips.push_back({0, middle});
    routes.ties.push_back({middle, last});
  }
  if (middle > 1) routes.skips.push_back({middle - 1, last});
  return {{}, {routes.skips, {}}, {{}, routes.ties}, routes};
}

// Calls `visit(schedule, routes, description)` for every generator, some sizes and all_routes.
template <typename Visit>
void for_each_message_case(const std::vector<int>& numbers_of_workers, const Visit& visit) {
  for (const ScheduleInfo& info : schedule_registry()) {
    for (const int num_workers : numbers_of_workers) {
      for (const int rounds : {1, 2, 4}) {
        const Schedule schedule = make_schedule(info.name, num_workers, num_workers * rounds);
        for (const Routes& routes : all_routes(schedule)) {
          visit(schedule, routes,
                std::string(info.name) + " K=" + std::to_string(num_workers) +
                    " M=" + std::to_string(schedule.num_micro_batches) + (routes.skips.empty() ? "" : " skips") +
                    (routes.ties.empty() ? "" : " ties"));
        }
      }
    }
  }
}

}  // namespace gpipe::test
