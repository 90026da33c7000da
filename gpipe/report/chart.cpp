#include "gpipe/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

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

Bar make_bar(double start_seconds, double end_seconds, double makespan_seconds) {
  Bar bar;
  bar.begin = clip(start_seconds / makespan_seconds);
  bar.end = std::max(bar.begin, clip(end_seconds / makespan_seconds));
  return bar;
}

std::vector<int> stages_of(const std::vector<Span>& spans) {
  std::vector<int> stages;
  for (const Span& span : spans) {
    const auto place = std::lower_bound(stages.begin(), stages.end(), span.action.stage);
    if (place == stages.end() || *place != span.action.stage) stages.insert(place, span.action.stage);
  }
  return stages;
}

// 1, 2 or 5 times a power of ten, not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

char kind_letter(int kind) { return kind == kUpdate ? 'U' : letter(static_cast<ActionKind>(kind)); }

const char* kind_name(int kind) { return kind == kUpdate ? "optimizer step" : name(static_cast<ActionKind>(kind)); }

Row make_row(const Timeline& timeline, int worker) {
  Row row;
  const double makespan = timeline.makespan_seconds;
  if (!is_drawable(makespan)) return row;
  const WorkerTimeline& source = timeline.workers[worker];
  const std::vector<int> stages = stages_of(source.spans);
  row.num_chunks = std::max<int>(1, static_cast<int>(stages.size()));
  row.busy_fraction = clip(source.busy_seconds / makespan);
  row.bars.reserve(source.spans.size() + 1);
  for (const Span& span : source.spans) {
    Bar bar = make_bar(span.start_seconds, span.end_seconds, makespan);
    bar.kind = static_cast<int>(span.action.kind);
    bar.chunk = static_cast<int>(std::lower_bound(stages.begin(), stages.end(), span.action.stage) - stages.begin());
    row.bars.push_back(bar);
  }
  if (source.update_end_seconds > source.update_start_seconds) {
    Bar update = make_bar(source.update_start_seconds, source.update_end_seconds, makespan);
    update.kind = kUpdate;
    row.bars.push_back(update);
  }
  return row;
}

std::string label(const Action& action, bool with_stage) {
  return with_stage ? to_string(action) : fmt::format("{}{}", letter(action.kind), action.micro_batch);
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

}  // namespace gpipe::chart
