#include "cli/simulation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/quantity.h"
#include "cli/schedule_summary.h"
#include "gpipe/text/json_text.h"
#include "gpipe/text/printable.h"
#include "gpipe/text/table.h"

namespace gpipe::cli {
namespace {

using nlohmann::ordered_json;

// Without bytes in the costs every peak is zero: unknown, not nothing.
bool knows_bytes(const Timeline& timeline) {
  return std::any_of(timeline.workers.begin(), timeline.workers.end(),
                     [](const WorkerTimeline& worker) { return worker.peak_bytes > 0; });
}

std::string worker_table(const Timeline& timeline, int max_workers) {
  const TimeUnit unit = time_unit(timeline.makespan_seconds);
  const bool has_bytes = knows_bytes(timeline);
  std::vector<std::vector<std::string>> rows;
  for (int worker = 0; worker < std::min(timeline.num_workers(), max_workers); ++worker) {
    const WorkerTimeline& one = timeline.workers[worker];
    rows.push_back({fmt::format("{}", worker), format_seconds(one.busy_seconds, unit),
                    format_seconds(one.idle_seconds, unit), fmt::format("{:.4g}", one.peak_activations),
                    has_bytes ? format_bytes(one.peak_bytes) : ""});
  }
  std::string table = to_table({{"worker"},
                                {fmt::format("busy ({})", unit.name)},
                                {fmt::format("idle ({})", unit.name)},
                                {"peak activations"},
                                {"peak bytes"}},
                               rows);
  if (timeline.num_workers() > max_workers) {
    table += fmt::format("... and {} more workers; --json has them all\n", timeline.num_workers() - max_workers);
  }
  return table;
}

std::string breakdown_table(const Timeline& timeline) {
  const Breakdown& breakdown = timeline.breakdown;
  const double total = timeline.num_workers() * timeline.makespan_seconds;
  const TimeUnit unit = time_unit(total);
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* title, double seconds) {
    rows.push_back({title, format_seconds(seconds, unit), format_percent(total > 0 ? seconds / total : 0)});
  };
  add("useful", breakdown.useful_seconds);
  add("recompute", breakdown.recompute_seconds);
  add("weight update", breakdown.weight_update_seconds);
  add("idle: load imbalance", breakdown.load_imbalance_seconds);
  add("idle: schedule", breakdown.bubble_seconds);
  add("idle: communication", breakdown.communication_seconds);
  add("workers x makespan", total);
  return to_table({{"where the time went", Align::kLeft}, {unit.name}, {"share"}}, rows);
}

const Span& span_at(const Timeline& timeline, const SpanRef& ref) {
  return timeline.workers[ref.worker].spans[ref.index];
}

// How many actions of each kind stand on the critical path, and the longest wait between two of them.
std::string describe_critical_path(const Timeline& timeline) {
  if (timeline.critical_path.empty()) return "";
  std::vector<Action> actions;
  double longest_wait = 0;
  std::string where;
  for (std::size_t step = 0; step < timeline.critical_path.size(); ++step) {
    const Span& span = span_at(timeline, timeline.critical_path[step]);
    actions.push_back(span.action);
    if (step == 0) continue;
    const Span& before = span_at(timeline, timeline.critical_path[step - 1]);
    const double wait = span.start_seconds - before.end_seconds;
    if (wait <= longest_wait) continue;
    longest_wait = wait;
    where = fmt::format("{} to {}", to_string(before.action), to_string(span.action));
  }
  // Waits of rounding size are none.
  const bool waits = longest_wait > 1e-9 * timeline.makespan_seconds;
  return fmt::format(
      "critical path: {}, {}; {}\n", count_of(static_cast<std::int64_t>(actions.size()), "action"),
      count_kinds(actions),
      waits ? fmt::format("longest wait {}, from {}", format_seconds(longest_wait), where) : "no waits between them");
}

// Whether the shortest action gets a column: where it does not, the gantt is a blur.
bool fits(const Timeline& timeline, const GanttOptions& gantt) {
  constexpr int kMargins = 10;  // worker number, bars, busy share
  double shortest = timeline.makespan_seconds;
  for (const WorkerTimeline& worker : timeline.workers) {
    for (const Span& span : worker.spans) {
      const double seconds = span.end_seconds - span.start_seconds;
      if (seconds > 0) shortest = std::min(shortest, seconds);
    }
  }
  return shortest * (gantt.width - kMargins) >= timeline.makespan_seconds;
}

// Instead of a gantt that would not be legible: what its first and its last line say.
std::string headline(const Timeline& timeline, const GanttOptions& gantt) {
  return fmt::format(
      "{}: {}\nmakespan {}  bubble {}\nno gantt: the actions do not fit into {} columns; try --width N or --svg FILE\n",
      printable(timeline.name), describe_size(timeline.num_workers(), timeline.num_stages, timeline.num_micro_batches),
      format_seconds(timeline.makespan_seconds), format_percent(timeline.bubble_fraction), gantt.width);
}

ordered_json breakdown_json(const Breakdown& breakdown) {
  return {{"useful", breakdown.useful_seconds},
          {"recompute", breakdown.recompute_seconds},
          {"weight_update", breakdown.weight_update_seconds},
          {"load_imbalance", breakdown.load_imbalance_seconds},
          {"bubble", breakdown.bubble_seconds},
          {"communication", breakdown.communication_seconds}};
}

}  // namespace

std::string simulation_report(const Timeline& timeline, const GanttOptions& gantt) {
  std::string report = fits(timeline, gantt) ? to_gantt(timeline, gantt) : headline(timeline, gantt);
  report += describe_critical_path(timeline) + "\n";
  report += worker_table(timeline, gantt.max_workers) + "\n";
  report += breakdown_table(timeline);
  return report;
}

std::string simulation_json(const Timeline& timeline) {
  ordered_json json = {{"schedule", timeline.name},
                       {"num_stages", timeline.num_stages},
                       {"num_workers", timeline.num_workers()},
                       {"num_micro_batches", timeline.num_micro_batches},
                       {"makespan", timeline.makespan_seconds},
                       {"bubble_fraction", timeline.bubble_fraction}};
  const bool has_bytes = knows_bytes(timeline);
  json["workers"] = ordered_json::array();
  for (int worker = 0; worker < timeline.num_workers(); ++worker) {
    const WorkerTimeline& one = timeline.workers[worker];
    json["workers"].push_back({{"worker", worker},
                               {"busy", one.busy_seconds},
                               {"idle", one.idle_seconds},
                               {"peak_activations", one.peak_activations},
                               {"peak_bytes", has_bytes ? ordered_json(one.peak_bytes) : nullptr}});
  }
  json["breakdown"] = breakdown_json(timeline.breakdown);
  json["critical_path"] = ordered_json::array();
  for (const SpanRef& ref : timeline.critical_path) {
    json["critical_path"].push_back(to_string(span_at(timeline, ref).action));
  }
  return indented_json(json);
}

}  // namespace gpipe::cli
