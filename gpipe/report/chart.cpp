#include "gpipe/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace gpipe::chart {
namespace {

struct Unit {
  double seconds;
  const char* symbol;
};

// The largest unit not above `seconds`.
Unit unit_for(double seconds) {
  static constexpr Unit kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}};
  for (const Unit& unit : kUnits) {
    if (seconds >= unit.seconds * (1 - 1e-9)) return unit;
  }
  return {1e-12, "ps"};
}

bool is_drawable(double makespan_seconds) { return std::isfinite(makespan_seconds) && makespan_seconds > 0; }

// Outside of this, units and fixed decimals no longer help.
bool has_unit(double seconds) { return seconds >= 1e-12 && seconds < 1e9; }

// Into [0, 1]; 0 for what is not a number.
double clip(double fraction) { return fraction > 0 ? std::min(fraction, 1.0) : 0.0; }

// 1, 2 or 5 times a power of ten, not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

char kind_letter(int kind) { return letter(static_cast<ActionKind>(kind)); }

const char* kind_name(int kind) { return name(static_cast<ActionKind>(kind)); }

Row make_row(const Timeline& timeline, int worker) {
  Row row;
  const double makespan = timeline.makespan_seconds;
  if (!is_drawable(makespan)) return row;
  const WorkerTimeline& source = timeline.workers[worker];
  std::map<int, int> chunk_of_stage;
  for (const Span& span : source.spans) chunk_of_stage[span.action.stage] = 0;
  int num_chunks = 0;
  for (auto& [stage, chunk] : chunk_of_stage) chunk = num_chunks++;
  row.num_chunks = std::max(1, num_chunks);
  row.busy_fraction = clip(source.busy_seconds / makespan);
  row.bars.reserve(source.spans.size() + 1);
  const auto add = [&](double start_seconds, double end_seconds, int kind, int chunk) {
    const double begin = clip(start_seconds / makespan);
    row.bars.push_back({begin, std::max(begin, clip(end_seconds / makespan)), kind, chunk});
  };
  for (const Span& span : source.spans) {
    add(span.start_seconds, span.end_seconds, static_cast<int>(span.action.kind), chunk_of_stage[span.action.stage]);
  }
  if (source.update_end_seconds > source.update_start_seconds) {
    add(source.update_start_seconds, source.update_end_seconds, kUpdate, 0);
  }
  return row;
}

std::string label(const Action& action, bool with_stage) {
  const std::string text = to_string(action);
  return with_stage ? text : text.substr(text.find(letter(action.kind)));
}

std::vector<Tick> make_ticks(double makespan_seconds, int max_ticks) {
  std::vector<Tick> ticks = {{0, "0"}};
  if (!is_drawable(makespan_seconds) || max_ticks < 1) return ticks;
  const double step = round_step(makespan_seconds / max_ticks);
  const Unit unit = unit_for(makespan_seconds);
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step / unit.seconds) + 1e-9)));
  for (int tick = 1; tick <= max_ticks; ++tick) {
    const double seconds = tick * step;
    if (!(seconds <= makespan_seconds * (1 + 1e-9))) break;
    ticks.push_back({clip(seconds / makespan_seconds),
                     has_unit(makespan_seconds)
                         ? fmt::format("{:.{}f} {}", seconds / unit.seconds, decimals, unit.symbol)
                         : fmt::format("{:.4g} s", seconds)});
  }
  return ticks;
}

std::string format_seconds(double seconds) {
  if (!has_unit(seconds)) return fmt::format("{:.4g} s", seconds);
  const Unit unit = unit_for(seconds);
  const double value = seconds / unit.seconds;
  return value < 1000 ? fmt::format("{:.4g} {}", value, unit.symbol) : fmt::format("{:.0f} {}", value, unit.symbol);
}

std::string format_percent(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

std::string count(std::int64_t number, const char* noun, const char* plural_ending) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : plural_ending);
}

std::vector<std::string> format_size(std::int64_t num_stages, std::int64_t num_workers,
                                     std::int64_t num_micro_batches) {
  std::vector<std::string> size = {count(num_stages, "stage")};
  if (num_workers != num_stages) size.push_back(count(num_workers, "worker"));
  size.push_back(count(num_micro_batches, "micro-batch", "es"));
  return size;
}

std::string format_name(std::string name) {
  const auto is_unfit = [](char byte) { return byte < ' ' || byte > '~'; };
  std::replace_if(name.begin(), name.end(), is_unfit, '?');
  return name;
}

}  // namespace gpipe::chart
