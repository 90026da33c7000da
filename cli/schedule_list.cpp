#include "cli/schedule_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <vector>

#include "cli/command.h"
#include "cli/quantity.h"
#include "cli/wrap.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/simulate/simulate.h"
#include "gpipe/text/layout.h"

namespace gpipe::cli {
namespace {

using detail::Align;

constexpr const char* kLegend =
    "chunks: stages a worker, and which other numbers of them there are. bubble: the share of time that workers idle, "
    "with F = 1, B = 2, I = W = 1 and free messages. peak: the micro-batches whose activations the fullest worker "
    "holds at once. messages: how many go from one worker to another in a step. A Pipeline trains with all of them but "
    "forward, which has no backward, and evaluates with the forwards of any.";

// Each flow carries one message a micro-batch.
std::int64_t messages_between_workers(const Schedule& schedule) {
  const FlowTable table = make_flow_table(schedule);
  std::int64_t num_flows = 0;
  for (int flow = 0; flow < static_cast<int>(table.flows.size()); ++flow) num_flows += table.is_local(flow) ? 0 : 1;
  return num_flows * schedule.num_micro_batches;
}

std::string chunks_text(const ScheduleInfo& info) {
  const char* others = info.chunks_step == 0 ? "" : info.chunks_step == 1 ? "any, " : "even, ";
  return fmt::format("{}{}", others, info.default_chunks);
}

std::vector<std::string> figures(const ScheduleInfo& info, const Schedule& schedule) {
  SimulateOptions options;
  options.critical_path = false;
  const Timeline timeline = simulate(schedule, uniform_costs(schedule), options);
  double peak = 0;
  for (const WorkerTimeline& worker : timeline.workers) peak = std::max(peak, worker.peak_activations);
  return {info.name, chunks_text(info), format_percent(timeline.bubble_fraction), fmt::format("{:.4g}", peak),
          fmt::format("{}", messages_between_workers(schedule))};
}

}  // namespace

std::string schedule_list(const ScheduleOptions& options, int width) {
  refuse_if(options.chunks.has_value(), "--list shows every schedule with its own number of chunks",
            "leave --chunks out, or name a schedule");
  ScheduleOptions sized = options;
  sized.num_workers = options.num_workers.value_or(4);
  sized.num_micro_batches = options.num_micro_batches.value_or(8);
  std::vector<std::vector<std::string>> rows;
  for (const ScheduleInfo& info : schedule_registry()) {
    sized.name = info.name;
    rows.push_back(figures(info, make_schedule(sized)));
  }
  std::istringstream table(
      detail::to_table({{"name", Align::kLeft}, {"chunks", Align::kLeft}, {"bubble"}, {"peak"}, {"messages"}}, rows));
  std::string list = fmt::format("{}, {}:\n", count_of(*sized.num_workers, "worker"),
                                 count_of(*sized.num_micro_batches, "micro-batch"));
  std::string line;
  std::getline(table, line);
  list += line + "  what it does\n";
  for (const ScheduleInfo& info : schedule_registry()) {
    std::getline(table, line);
    constexpr int kNarrowest = 20;
    const std::size_t indent = line.size() + 2;
    const int rest = std::max(width - static_cast<int>(indent), kNarrowest);
    list += fmt::format("{}  {}\n", line, wrapped(info.summary, static_cast<std::size_t>(rest), indent));
  }
  return list + "\n" + wrapped(kLegend, static_cast<std::size_t>(std::max(width, 20))) + "\n";
}

}  // namespace gpipe::cli
