#include "gpipe/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "gpipe/error.h"
#include "gpipe/report/chart.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/json.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/require.h"
#include "gpipe/text/utf8.h"

namespace gpipe {
namespace {

using detail::Align;
using detail::continues_character;
using detail::format_bytes;
using detail::indented_json;
using detail::require;
using detail::to_table;

using nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kRemedy = "compare timelines of the same schedule";

void check_equal(const std::string& what, std::int64_t predicted, std::int64_t measured) {
  require(predicted == measured, "the prediction has {} {}, the measurement {}; {}", predicted, what, measured,
          kRemedy);
}

void check_actions(int worker, const std::vector<Span>& predicted, const std::vector<Span>& measured, int num_stages) {
  for (std::size_t index = 0; index < std::min(predicted.size(), measured.size()); ++index) {
    const Action& action = predicted[index].action;
    if (action != measured[index].action) {
      throw InvalidArgument(fmt::format("action {} of worker {} is {} in the prediction, {} in the measurement; {}",
                                        index, worker, to_string(action), to_string(measured[index].action), kRemedy));
    }
    if (action.stage < 0 || action.stage >= num_stages) {
      throw InvalidArgument(
          fmt::format("action {} of worker {} is {}, of a stage that does not exist; expected 0 to {}", index, worker,
                      to_string(action), num_stages - 1));
    }
  }
  check_equal(fmt::format("actions on worker {}", worker), static_cast<std::int64_t>(predicted.size()),
              static_cast<std::int64_t>(measured.size()));
}

std::vector<StageComparison> compare_stages(const Timeline& predicted, const Timeline& measured) {
  std::vector<std::array<KindComparison, kNumActionKinds>> sums(predicted.num_stages);
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    for (std::size_t index = 0; index < predicted.workers[worker].spans.size(); ++index) {
      const Span& forecast = predicted.workers[worker].spans[index];
      const Span& actual = measured.workers[worker].spans[index];
      KindComparison& sum = sums[forecast.action.stage][static_cast<std::size_t>(forecast.action.kind)];
      sum.kind = forecast.action.kind;
      ++sum.num_actions;
      sum.total_seconds.predicted += forecast.end_seconds - forecast.start_seconds;
      sum.total_seconds.measured += actual.end_seconds - actual.start_seconds;
    }
  }
  std::vector<StageComparison> stages(sums.size());
  for (std::size_t stage = 0; stage < sums.size(); ++stage) {
    for (KindComparison& sum : sums[stage]) {
      if (sum.num_actions == 0) continue;
      sum.mean_seconds = {sum.total_seconds.predicted / sum.num_actions, sum.total_seconds.measured / sum.num_actions};
      stages[stage].kinds.push_back(sum);
    }
  }
  return stages;
}

WorkerComparison compare_workers(const WorkerTimeline& predicted, const WorkerTimeline& measured) {
  WorkerComparison worker;
  worker.busy_seconds = {predicted.busy_seconds, measured.busy_seconds};
  worker.idle_seconds = {predicted.idle_seconds, measured.idle_seconds};
  worker.update_seconds = {predicted.update_end_seconds - predicted.update_start_seconds,
                           measured.update_end_seconds - measured.update_start_seconds};
  // Zero is unknown, not nothing.
  if (predicted.peak_bytes > 0 && measured.peak_bytes > 0) {
    worker.peak_bytes = ComparedBytes{predicted.peak_bytes, measured.peak_bytes};
  }
  return worker;
}

constexpr std::size_t kMaxRows = 64;  // stages, and workers

// What a table shows. The first that fits the width is taken, else the last.
struct Detail {
  bool has_totals;
  bool has_names;  // of the kinds of action, not just letters
};
constexpr Detail kDetails[] = {{true, true}, {false, true}, {false, false}};

std::string format_ratio(double ratio) { return fmt::format("{:.3g}", ratio); }

int widest_line(const std::string& text) {
  int widest = 0;
  int used = 0;
  for (const char byte : text) {
    if (byte == '\n') used = 0;
    if (byte != '\n' && !continues_character(byte)) widest = std::max(widest, ++used);
  }
  return widest;
}

std::string more(std::size_t number, const char* noun) {
  return number <= kMaxRows ? "" : fmt::format("... and {}\n", chart::count(number - kMaxRows, noun));
}

std::string step_table(const Comparison& comparison) {
  const Compared& step = comparison.step_seconds;
  const Compared& bubble = comparison.bubble_fraction;
  return to_table({{"", Align::kLeft}, {"predicted"}, {"measured"}, {"ratio"}},
                  {{"step", chart::format_seconds(step.predicted), chart::format_seconds(step.measured),
                    format_ratio(step.ratio())},
                   {"bubble", chart::format_percent(bubble.predicted), chart::format_percent(bubble.measured), ""}});
}

std::string action_table(const Comparison& comparison, const Detail& detail) {
  Rows rows;
  const std::size_t num_stages = std::min(comparison.stages.size(), kMaxRows);
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    for (const KindComparison& kind : comparison.stages[stage].kinds) {
      const Compared& total = kind.total_seconds;
      rows.push_back({fmt::format("{}", stage), detail.has_names ? name(kind.kind) : std::string(1, letter(kind.kind)),
                      fmt::format("{}", kind.num_actions), chart::format_seconds(kind.mean_seconds.predicted),
                      chart::format_seconds(kind.mean_seconds.measured), format_ratio(kind.mean_seconds.ratio()),
                      detail.has_totals ? chart::format_seconds(total.predicted) : "",
                      detail.has_totals ? chart::format_seconds(total.measured) : ""});
    }
  }
  return to_table({{"stage"},
                   {detail.has_names ? "action" : "", Align::kLeft},
                   {detail.has_names ? "number" : ""},
                   {"predicted"},
                   {"measured"},
                   {"ratio"},
                   {"all predicted"},
                   {"all measured"}},
                  rows);
}

// Without the totals, only the busy seconds: the idle ones are what they leave of the step.
std::string worker_table(const Comparison& comparison, const Detail& detail) {
  Rows rows;
  const std::size_t num_workers = std::min(comparison.workers.size(), kMaxRows);
  for (std::size_t worker = 0; worker < num_workers; ++worker) {
    const WorkerComparison& one = comparison.workers[worker];
    rows.push_back({fmt::format("{}", worker), chart::format_seconds(one.busy_seconds.predicted),
                    chart::format_seconds(one.busy_seconds.measured), format_ratio(one.busy_seconds.ratio()),
                    detail.has_totals ? chart::format_seconds(one.idle_seconds.predicted) : "",
                    detail.has_totals ? chart::format_seconds(one.idle_seconds.measured) : ""});
  }
  return to_table({{"worker"}, {"busy predicted"}, {"measured"}, {"ratio"}, {"idle predicted"}, {"measured"}}, rows);
}

// `parts` are stages or workers; empty if no part knows its bytes.
template <typename Parts>
std::string byte_table(const char* title, const Parts& parts) {
  Rows rows;
  for (std::size_t part = 0; part < std::min(parts.size(), kMaxRows); ++part) {
    if (!parts[part].peak_bytes) continue;
    const ComparedBytes& bytes = *parts[part].peak_bytes;
    rows.push_back({fmt::format("{}", part), format_bytes(bytes.predicted), format_bytes(bytes.measured),
                    format_ratio(bytes.ratio())});
  }
  return rows.empty() ? "" : to_table({{title}, {"peak predicted"}, {"measured"}, {"ratio"}}, rows);
}

template <typename MakeTable>
std::string fitting(const Comparison& comparison, int width, const MakeTable& make_table) {
  std::string table;
  for (const Detail& detail : kDetails) {
    table = make_table(comparison, detail);
    if (widest_line(table) <= width) break;
  }
  return table;
}

template <typename Values>
ordered_json to_object(const Values& values) {
  return {{"predicted", values.predicted}, {"measured", values.measured}, {"ratio", values.ratio()}};
}

ordered_json to_object(const StageComparison& stage) {
  ordered_json object = {{"actions", ordered_json::array()}};
  for (const KindComparison& kind : stage.kinds) {
    object["actions"].push_back({{"kind", name(kind.kind)},
                                 {"num_actions", kind.num_actions},
                                 {"mean_seconds", to_object(kind.mean_seconds)},
                                 {"total_seconds", to_object(kind.total_seconds)}});
  }
  if (stage.peak_bytes) object["peak_bytes"] = to_object(*stage.peak_bytes);
  return object;
}

ordered_json to_object(const WorkerComparison& worker) {
  ordered_json object = {{"busy_seconds", to_object(worker.busy_seconds)},
                         {"idle_seconds", to_object(worker.idle_seconds)},
                         {"update_seconds", to_object(worker.update_seconds)}};
  if (worker.peak_bytes) object["peak_bytes"] = to_object(*worker.peak_bytes);
  return object;
}

}  // namespace

Comparison compare(const Timeline& predicted, const Timeline& measured, const StagePeakBytes& peak_bytes) {
  check_equal("workers", predicted.num_workers(), measured.num_workers());
  check_equal("stages", predicted.num_stages, measured.num_stages);
  check_equal("micro-batches", predicted.num_micro_batches, measured.num_micro_batches);
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    check_actions(worker, predicted.workers[worker].spans, measured.workers[worker].spans, predicted.num_stages);
  }
  const auto num_stages = static_cast<std::size_t>(predicted.num_stages);
  const bool is_absent = peak_bytes.predicted.empty() && peak_bytes.measured.empty();
  require(is_absent || (peak_bytes.predicted.size() == num_stages && peak_bytes.measured.size() == num_stages),
          "peak_bytes has {} predicted and {} measured entries for {} stages; expected one per stage, or none",
          peak_bytes.predicted.size(), peak_bytes.measured.size(), num_stages);
  Comparison comparison;
  comparison.name = predicted.name;
  comparison.num_micro_batches = predicted.num_micro_batches;
  comparison.step_seconds = {predicted.makespan_seconds, measured.makespan_seconds};
  comparison.bubble_fraction = {predicted.bubble_fraction, measured.bubble_fraction};
  comparison.stages = compare_stages(predicted, measured);
  for (std::size_t stage = 0; stage < peak_bytes.predicted.size(); ++stage) {
    comparison.stages[stage].peak_bytes = ComparedBytes{peak_bytes.predicted[stage], peak_bytes.measured[stage]};
  }
  for (int worker = 0; worker < predicted.num_workers(); ++worker) {
    comparison.workers.push_back(compare_workers(predicted.workers[worker], measured.workers[worker]));
  }
  return comparison;
}

std::string to_text(const Comparison& comparison, int width) {
  const std::string more_stages = more(comparison.stages.size(), "more stage");
  const std::string more_workers = more(comparison.workers.size(), "more worker");
  const auto size =
      chart::format_size(comparison.stages.size(), comparison.workers.size(), comparison.num_micro_batches);
  std::string text = fmt::format("{}  {}\n\n", chart::format_name(comparison.name), fmt::join(size, "  "));
  text += step_table(comparison);
  text += "\n" + fitting(comparison, width, action_table) + more_stages;
  text += "\n" + fitting(comparison, width, worker_table) + more_workers;
  std::string bytes = byte_table("stage", comparison.stages);
  if (!bytes.empty()) text += "\n" + bytes + more_stages;
  bytes = byte_table("worker", comparison.workers);
  if (!bytes.empty()) text += "\n" + bytes + more_workers;
  return text;
}

std::string to_json(const Comparison& comparison) {
  ordered_json json = {{"schedule", comparison.name},
                       {"num_workers", comparison.workers.size()},
                       {"num_stages", comparison.stages.size()},
                       {"num_micro_batches", comparison.num_micro_batches},
                       {"step_seconds", to_object(comparison.step_seconds)},
                       {"bubble_fraction", to_object(comparison.bubble_fraction)},
                       {"stages", ordered_json::array()},
                       {"workers", ordered_json::array()}};
  for (const StageComparison& stage : comparison.stages) json["stages"].push_back(to_object(stage));
  for (const WorkerComparison& worker : comparison.workers) json["workers"].push_back(to_object(worker));
  return indented_json(json);
}

}  // namespace gpipe
