#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/quantity.h"
#include "cli/schedule_summary.h"
#include "cli/wrap.h"
#include "gpipe/text/json_text.h"
#include "gpipe/text/printable.h"
#include "gpipe/text/table.h"

namespace gpipe::cli {
namespace {

using nlohmann::ordered_json;

// Longest name of a layer and longest bar. The first that fits the width is taken, else the last.
struct Detail {
  std::size_t name_width;
  int bar_width;
};
constexpr Detail kDetails[] = {{40, 20}, {30, 20}, {24, 10}, {18, 10}, {18, 0}, {12, 0}};

struct LayerRange {
  std::string first;
  std::string last;
};

std::vector<LayerRange> layer_ranges(const Profile& profile, const Plan& plan) {
  std::vector<LayerRange> ranges;
  std::size_t layer = 0;
  for (const int num_layers : plan.layers_per_stage) {
    const std::size_t last = layer + static_cast<std::size_t>(num_layers) - 1;
    ranges.push_back({profile.layers[layer].name, profile.layers[last].name});
    layer = last + 1;
  }
  return ranges;
}

std::string bar(double part, double whole, int width) {
  return whole > 0 ? std::string(static_cast<std::size_t>(std::lround(width * part / whole)), '#') : "";
}

Recompute mode_of(const Plan& plan, std::size_t stage) {
  return plan.recompute_by_stage.empty() ? plan.recompute : plan.recompute_by_stage[stage];
}

std::string stage_table(const Profile& profile, const Plan& plan, const Detail& detail) {
  const std::vector<LayerRange> ranges = layer_ranges(profile, plan);
  const TimeUnit unit = time_unit(plan.partition.slowest_seconds);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    const PartitionStage& one = plan.partition.stages[stage];
    rows.push_back({fmt::format("{}", stage), fmt::format("{}", one.num_layers),
                    shortened(printable(ranges[stage].first), detail.name_width),
                    shortened(printable(ranges[stage].last), detail.name_width), format_seconds(one.seconds, unit),
                    bar(one.seconds, plan.partition.slowest_seconds, detail.bar_width), format_bytes(one.bytes)});
    if (!plan.recompute_by_stage.empty()) rows.back().emplace_back(name(plan.recompute_by_stage[stage]));
    if (!plan.rematerialization.empty()) {
      const std::string runs = to_text(plan.rematerialization[stage]);
      rows.back().push_back(runs.empty() ? "-" : shortened(runs, detail.name_width));
    }
  }
  std::vector<Column> columns = {{"stage"},
                                 {"layers"},
                                 {"first", Align::kLeft},
                                 {"last", Align::kLeft},
                                 {fmt::format("time ({})", unit.name)},
                                 {"", Align::kLeft},
                                 {"bytes"}};
  if (!plan.recompute_by_stage.empty()) columns.push_back({"recompute", Align::kLeft});
  if (!plan.rematerialization.empty()) columns.push_back({"dropped layers", Align::kLeft});
  return to_table(columns, rows);
}

const char* recompute_text(const Plan& plan) {
  if (!plan.rematerialization.empty()) return "per layer";
  return plan.recompute_by_stage.empty() ? name(plan.recompute) : "per stage";
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

}  // namespace

std::string plan_report(const Profile& profile, const Plan& plan, const Forecast& step, int width) {
  std::string report = fmt::format(
      "{}: {}, recompute {}; {}\n\n", plan.schedule,
      describe_size(plan.num_workers(), static_cast<int>(plan.layers_per_stage.size()), plan.num_micro_batches),
      recompute_text(plan), count_of(static_cast<std::int64_t>(profile.layers.size()), "layer"));
  std::string table;
  for (const Detail& detail : kDetails) {
    table = stage_table(profile, plan, detail);
    if (widest_line(table) <= static_cast<std::size_t>(width)) break;
  }
  report += table + "\n";
  // With several chunks a worker runs several of the stages, and the formula is not about its step.
  if (plan.chunks == 1) {
    report += fmt::format("makespan   {} = sum(t) + (M - 1) max(t) over the stages' times t\n",
                          format_seconds(plan.partition.makespan_seconds));
  }
  report += fmt::format("simulated  {}, bubble {}\n", format_seconds(step.step_seconds),
                        format_percent(step.bubble_fraction));
  const auto fullest = std::max_element(step.peak_bytes.begin(), step.peak_bytes.end());
  report +=
      fmt::format("memory     {} at most, on worker {}\n", format_bytes(*fullest), fullest - step.peak_bytes.begin());
  return report;
}

std::string plan_json(const Profile& profile, const PlanSearch& search, const Forecast& step) {
  const Plan& plan = search.best;
  ordered_json json = {{"schedule", plan.schedule},
                       {"num_workers", plan.num_workers()},
                       {"num_stages", plan.layers_per_stage.size()},
                       {"num_micro_batches", plan.num_micro_batches},
                       {"chunks", plan.chunks},
                       {"recompute", name(plan.recompute)},
                       {"layers_per_stage", plan.layers_per_stage}};
  json["stages"] = ordered_json::array();
  const std::vector<LayerRange> ranges = layer_ranges(profile, plan);
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    json["stages"].push_back({{"layers", plan.layers_per_stage[stage]},
                              {"first", ranges[stage].first},
                              {"last", ranges[stage].last},
                              {"seconds", plan.partition.stages[stage].seconds},
                              {"bytes", plan.partition.stages[stage].bytes},
                              {"recompute", name(mode_of(plan, stage))}});
    if (!plan.rematerialization.empty()) {
      json["stages"].back()["rematerialization"] = to_text(plan.rematerialization[stage]);
    }
  }
  // The formula is for one stage a worker; with several, only the simulation says how long a step takes.
  json["makespan"] = plan.chunks == 1 ? plan.partition.makespan_seconds : step.step_seconds;
  json["simulated_makespan"] = step.step_seconds;
  json["bubble_fraction"] = step.bubble_fraction;
  json["peak_bytes"] = plan.predicted_peak_bytes;
  json["candidates"] = ordered_json::array();
  for (const PlanCandidate& candidate : search.candidates) {
    json["candidates"].push_back({{"schedule", candidate.schedule},
                                  {"chunks", candidate.chunks},
                                  {"num_micro_batches", candidate.num_micro_batches},
                                  {"recompute", candidate.recompute}});
    ordered_json& entry = json["candidates"].back();
    if (candidate.missing_bytes > 0) {
      entry["missing_bytes"] = candidate.missing_bytes;
    } else {
      entry["simulated_makespan"] = candidate.step_seconds;
      entry["fullest_bytes"] = candidate.fullest_bytes;
    }
  }
  return indented_json(json);
}

}  // namespace gpipe::cli
