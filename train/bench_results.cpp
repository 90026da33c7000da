#include "train/bench_results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/quantity.h"
#include "cli/text.h"

namespace gpipe::train {
namespace {

using Cells = std::vector<std::vector<std::string>>;
using Json = nlohmann::ordered_json;

const std::vector<std::string>& bench_titles() {
  static const auto* titles =
      new std::vector<std::string>{"<", "step", "speed", "quartiles", "/bound", "peak", "predicted"};
  return *titles;
}

std::string bytes_or_nothing(std::optional<std::int64_t> bytes) { return bytes ? cli::format_bytes(*bytes) : ""; }

std::string text_of(const std::optional<BenchPeak>& peak) {
  if (!peak) return "";
  return peak->fullest_bytes > 0 ? cli::format_bytes(peak->fullest_bytes)
                                 : cli::format_bytes(peak->total_bytes) + " in all";
}

Cells bench_cells(const BenchRun& run) {
  Cells cells;
  for (const BenchRow& row : run.rows) {
    if (row.why_not) continue;
    cells.push_back({row.name, cli::format_seconds(row.seconds.median), fmt::format("{:.2f}", row.speed_up.median),
                     fmt::format("{:.2f}-{:.2f}", row.speed_up.lower_quartile, row.speed_up.upper_quartile),
                     row.bound ? fmt::format("{:.2f}", row.speed_up.median / *row.bound) : "", text_of(row.peak),
                     bytes_or_nothing(row.predicted_bytes)});
  }
  return cells;
}

// What a table has no column for.
std::vector<std::string> bench_remarks(const BenchRun& run) {
  std::vector<std::string> remarks;
  for (const BenchRow& row : run.rows) {
    if (row.why_not) remarks.push_back(fmt::format("{}: {}", row.name, *row.why_not));
    if (row.own_speed_up) {
      remarks.push_back(fmt::format("{}: {:.2f} over its own plain loop ({:.2f}-{:.2f})", row.name,
                                    row.own_speed_up->median, row.own_speed_up->lower_quartile,
                                    row.own_speed_up->upper_quartile));
    }
  }
  if (run.noise.two_threads) {
    const Spread& two = *run.noise.two_threads;
    remarks.push_back(fmt::format("two plain loops at once: {:.2f} times the work of one ({:.2f}-{:.2f})", two.median,
                                  two.lower_quartile, two.upper_quartile));
  }
  remarks.push_back(judge(run.noise).text);
  return remarks;
}

std::string bench_heading(const BenchRun& run) {
  const std::string steps = run.steps_per_turn == 1 ? "" : fmt::format(" of {} steps", run.steps_per_turn);
  return fmt::format("{}, M={}, medians of {} turn{}{}", run.workload, run.num_micro_batches, run.num_repeats,
                     run.num_repeats == 1 ? "" : "s", steps);
}

Json spread_json(const Spread& spread) {
  return {{"median", spread.median},
          {"lower_quartile", spread.lower_quartile},
          {"upper_quartile", spread.upper_quartile},
          {"least", spread.least},
          {"most", spread.most}};
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json row_json(const BenchRow& row) {
  Json json = {{"name", row.name},
               {"kind", row.kind},
               {"stages", row.num_stages},
               {"threads", row.num_threads},
               {"micro_batches", row.num_micro_batches},
               {"schedule", row.schedule},
               {"recompute", row.recompute},
               {"layers_per_stage", row.layers_per_stage}};
  if (row.why_not) {
    json["not_run"] = *row.why_not;
    return json;
  }
  json["seconds"] = spread_json(row.seconds);
  json["speed_up"] = spread_json(row.speed_up);
  if (row.own_speed_up) json["speed_up_over_its_own_plain_loop"] = spread_json(*row.own_speed_up);
  json["bound"] = or_null(row.bound);
  if (row.cpu_seconds > 0) json["cpu_seconds"] = row.cpu_seconds;
  if (row.bubble) json["bubble"] = *row.bubble;
  if (row.inside) json["inside"] = *row.inside;
  json["peak_bytes"] = row.peak && row.peak->fullest_bytes > 0 ? Json(row.peak->fullest_bytes) : Json(nullptr);
  json["all_peaks_bytes"] = row.peak ? Json(row.peak->total_bytes) : Json(nullptr);
  json["predicted_peak_bytes"] = or_null(row.predicted_bytes);
  json["loss"] = row.loss;
  json["same_loss"] = or_null(row.same_loss);
  return json;
}

Json run_json(const BenchRun& run) {
  const Verdict verdict = judge(run.noise);
  Json json = {{"workload", run.workload},
               {"description", run.description},
               {"micro_batches", run.num_micro_batches},
               {"repeats", run.num_repeats},
               {"steps_per_turn", run.steps_per_turn},
               {"others_share", or_null(run.noise.others_share)},
               {"two_thread_scaling", run.noise.two_threads ? spread_json(*run.noise.two_threads) : Json(nullptr)},
               {"quiet", verdict.is_quiet},
               {"verdict", verdict.text},
               {"rows", Json::array()}};
  for (const BenchRow& row : run.rows) json["rows"].push_back(row_json(row));
  return json;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string bench_markdown(const BenchRun& run) {
  std::vector<std::string> titles = bench_titles();
  titles.front() = "";
  std::string text = fmt::format("## {}\n\n{}.\n\n", bench_heading(run), run.description);
  text += markdown_line(titles) + markdown_line(std::vector<std::string>(titles.size(), "---"));
  for (const std::vector<std::string>& row : bench_cells(run)) text += markdown_line(row);
  text += "\n";
  for (const std::string& remark : bench_remarks(run)) text += fmt::format("- {}\n", remark);
  return text;
}

}  // namespace

std::vector<std::string> rows_with_other_losses(const BenchRun& run) {
  std::vector<std::string> names;
  for (const BenchRow& row : run.rows) {
    if (row.same_loss && !*row.same_loss) names.push_back(row.name);
  }
  return names;
}

std::string bench_text(const BenchRun& run) {
  std::string text = fmt::format("{}\n{}", bench_heading(run), cli::to_table(bench_titles(), bench_cells(run)));
  for (const std::string& remark : bench_remarks(run)) text += remark + "\n";
  return text;
}

std::string bench_markdown(const BenchMachine& machine, const std::vector<BenchRun>& runs) {
  std::string text =
      fmt::format("# gpipe bench\n\ngpipe {}, libtorch {}, {} processor{}: {}.\n", machine.gpipe, machine.libtorch,
                  machine.num_processors, machine.num_processors == 1 ? "" : "s", machine.processor);
  for (const BenchRun& run : runs) text += "\n" + bench_markdown(run);
  return text;
}

std::string bench_json(const BenchMachine& machine, const std::vector<BenchRun>& runs) {
  Json json = {{"gpipe", machine.gpipe},
               {"libtorch", machine.libtorch},
               {"processor", machine.processor},
               {"processors", machine.num_processors},
               {"runs", Json::array()}};
  for (const BenchRun& run : runs) json["runs"].push_back(run_json(run));
  return json.dump(2) + "\n";
}

}  // namespace gpipe::train
