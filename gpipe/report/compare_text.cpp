// A comparison as text.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "gpipe/report/chart.h"
#include "gpipe/report/compare.h"
#include "gpipe/text/byte_text.h"
#include "gpipe/text/layout.h"
#include "gpipe/text/utf8.h"

namespace gpipe {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kMaxRows = 64;  // stages, and workers

// What a table shows. The first that fits the width is taken, else the last.
struct Detail {
  bool has_totals;
  bool has_names;  // of the kinds of action, not just letters
};
constexpr Detail kDetails[] = {{true, true}, {false, true}, {false, false}};

// Keeps a hostile name from moving the cursor.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char byte) { return byte < ' ' || byte > '~'; }, '?');
  return text;
}

std::string count(std::size_t number, const char* noun, const char* plural_ending) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : plural_ending);
}

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
  return number <= kMaxRows ? "" : fmt::format("... and {}\n", count(number - kMaxRows, noun, "s"));
}

std::string heading(const Comparison& comparison) {
  std::string line = fmt::format("{}  {}", printable(comparison.name), count(comparison.stages.size(), "stage", "s"));
  if (comparison.workers.size() != comparison.stages.size()) {
    line += "  " + count(comparison.workers.size(), "worker", "s");
  }
  return line + "  " + count(static_cast<std::size_t>(comparison.num_micro_batches), "micro-batch", "es") + "\n";
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

}  // namespace

std::string to_text(const Comparison& comparison, int width) {
  const std::string more_stages = more(comparison.stages.size(), "more stage");
  const std::string more_workers = more(comparison.workers.size(), "more worker");
  std::string text = heading(comparison) + "\n" + step_table(comparison);
  text += "\n" + fitting(comparison, width, action_table) + more_stages;
  text += "\n" + fitting(comparison, width, worker_table) + more_workers;
  std::string bytes = byte_table("stage", comparison.stages);
  if (!bytes.empty()) text += "\n" + bytes + more_stages;
  bytes = byte_table("worker", comparison.workers);
  if (!bytes.empty()) text += "\n" + bytes + more_workers;
  return text;
}

}  // namespace gpipe
