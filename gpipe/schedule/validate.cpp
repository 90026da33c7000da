#include "gpipe/schedule/validate.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpipe/schedule/capacity.h"
#include "gpipe/schedule/deadlock.h"
#include "gpipe/schedule/structure.h"
#include "gpipe/schedule/token_game.h"
#include "gpipe/schedule/weaker_transport.h"

namespace gpipe {
namespace {

void check_no_deadlock(const Schedule& schedule, const FlowTable& table) {
  Spectator spectator;
  TokenGame<Spectator> game(schedule, table, {}, spectator);
  if (!game.run()) throw deadlock_error(schedule, table, game.standstill());
}

std::vector<std::int64_t> check_memory(const Schedule& schedule, const ValidateOptions& options) {
  if (options.stages.empty()) return {};
  if (static_cast<int>(options.stages.size()) != schedule.num_stages) {
    throw InvalidArgument(fmt::format("the schedule has {} stages, but bytes are given for {}", schedule.num_stages,
                                      options.stages.size()));
  }
  std::vector<std::int64_t> peaks = peak_bytes_by_worker(schedule, options.stages);
  if (!options.memory_limit_bytes) return peaks;
  const auto fullest = std::max_element(peaks.begin(), peaks.end());
  if (*fullest > *options.memory_limit_bytes) {
    throw ScheduleError(
        Rule::kMemory,
        fmt::format("{}: worker {} holds {} bytes at its peak, {} more than the limit of {}; more stages, "
                    "smaller micro-batches or recompute would help",
                    name(Rule::kMemory), fullest - peaks.begin(), *fullest, *fullest - *options.memory_limit_bytes,
                    *options.memory_limit_bytes),
        {});
  }
  return peaks;
}

// The first weight gradient that comes after a later micro-batch's; empty when there is none.
std::string why_not_canonical(const Schedule& schedule) {
  std::vector<Action> last(schedule.num_stages, Action{ActionKind::kForward, 0, -1});
  for (const auto& actions : schedule.workers) {
    for (const Action& action : actions) {
      if (!makes_weight_grad(action.kind)) continue;
      Action& before = last[action.stage];
      if (before.micro_batch > action.micro_batch) {
        return fmt::format("stage {} accumulates {} before {}", action.stage, to_string(before), to_string(action));
      }
      before = action;
    }
  }
  return "";
}

}  // namespace

const char* name(Rule rule) {
  switch (rule) {
    case Rule::kCompleteness:
      return "rule 1 (one F, then at most one R, then one B or one I and one W)";
    case Rule::kPlacement:
      return "rule 2 (each stage lives on one worker)";
    case Rule::kChannelOrder:
      return "rule 3 (a flow is received in the order it is sent)";
    case Rule::kDeadlock:
      return "rule 3 (no deadlock)";
    case Rule::kMemory:
      return "rule 5 (peak memory within the limit)";
  }
  return "unknown rule";
}

Certificate validate(const Schedule& schedule, const ValidateOptions& options) {
  check_structure(schedule);
  const FlowTable table = make_flow_table(schedule, options.routes);
  check_no_deadlock(schedule, table);

  Certificate certificate;
  certificate.forward_only = !schedule.has_backward();
  certificate.peak_bytes = check_memory(schedule, options);
  certificate.peak_activations = peak_activations_by_worker(schedule);
  certificate.non_canonical_because = why_not_canonical(schedule);
  certificate.canonical = certificate.non_canonical_because.empty();
  certificate.rendezvous = survives_rendezvous(schedule, table);
  certificate.one_channel_per_pair = survives_one_channel_per_pair(schedule, table);
  if (!options.compute_capacities) return certificate;

  const std::vector<int> live = live_capacities(schedule, table);
  const std::optional<std::vector<int>> free = free_capacities(schedule, table);
  for (int flow = 0; flow < static_cast<int>(table.flows.size()); ++flow) {
    FlowCertificate entry;
    entry.flow = table.flows[flow];
    entry.is_local = table.is_local(flow);
    entry.live_capacity = live[flow];
    if (free) entry.free_capacity = (*free)[flow];
    certificate.flows.push_back(entry);
  }
  return certificate;
}

}  // namespace gpipe
