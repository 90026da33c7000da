#include "gpipe/report/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "gpipe/report/chart.h"
#include "gpipe/text/utf8.h"

namespace gpipe {
namespace {

using detail::continues_character;
using detail::num_characters;

using chart::Bar;
using chart::kNumKinds;
using chart::Row;

constexpr int kMaxWidth = 10000;
constexpr int kBusyColumns = 5;
constexpr int kLeastColumns = 8;
constexpr int kIdle = kNumKinds;
constexpr std::string_view kFillSigns = "-~=:#+";  // for each kind, the sign that fills a span behind its label
constexpr std::string_view kReset = "\x1b[0m";

// What a character of a row stands for.
enum CellPart { kNothing, kStageNumber, kLetter, kMicroBatch, kFill, kSeveralSpans, kNumParts };

struct Cell {
  char symbol = '.';
  int kind = kIdle;
  int shade = 0;  // 0 or 1, to tell neighbouring chunks apart
  CellPart part = kNothing;
};

int to_column(double position, double scale) { return static_cast<int>(std::lround(position * scale)); }

// The step of the coarsest grid on which every bar begins and every action ends, in fractions of the makespan: Euclid's
// algorithm. 0 if there is none or it is finer than `least`.
double grid_step(const std::vector<Row>& rows, double least) {
  constexpr double kTolerance = 1e-9;
  double step = 0;
  const auto refine = [&](double position) {
    if (step == 0) step = position;
    double rest = position > 0 ? std::abs(std::remainder(position, step)) : 0;
    while (rest > kTolerance) {
      const double previous = step;
      step = rest;
      rest = std::abs(std::remainder(previous, step));
    }
    return step == 0 || step >= least * (1 - kTolerance);
  };
  for (const Row& row : rows) {
    for (const Bar& bar : row.bars) {
      if (!refine(bar.begin) || (bar.kind != chart::kUpdate && !refine(bar.end))) return 0;
    }
  }
  return step;
}

// Columns the whole makespan takes, `columns` or fewer. Where all actions begin and end on a grid that is coarse
// enough, every step of it gets the same whole number of columns.
double choose_scale(const std::vector<Row>& rows, int columns) {
  const double step = grid_step(rows, 1.0 / columns);
  return step > 0 ? std::floor(columns * step + 1e-6) / step : columns;
}

// More bars than columns to show them in.
bool is_dense(const Row& row, double scale) {
  double length = 0;
  std::int64_t count = 0;
  for (const Bar& bar : row.bars) {
    length += bar.length();
    count += bar.length() > 0 ? 1 : 0;
  }
  return length * scale < static_cast<double>(count) * (1 - 1e-9);
}

std::string fitting_label(const WorkerTimeline& worker, const Row& row, std::size_t bar, double width) {
  if (bar < worker.spans.size()) {
    for (const bool with_stage : {true, false}) {
      if (with_stage && row.num_chunks == 1) continue;
      std::string text = chart::label(worker.spans[bar].action, with_stage);
      const std::size_t needed = text.size() + (with_stage ? 1 : 0);  // "0F00F1" could not be read
      if (static_cast<double>(needed) <= width) return text;
    }
  }
  return std::string(1, chart::kind_letter(row.bars[bar].kind));
}

// Of the label "2F0", followed by the fill.
CellPart part_of_label(const std::string& text, std::size_t place) {
  if (place >= text.size()) return kFill;
  const std::size_t letter = text.find_first_not_of("0123456789");
  if (place == letter) return kLetter;
  return place < letter ? kStageNumber : kMicroBatch;
}

// Each span in its own columns, with the longest label that fits in front: "2F0" if the worker has several stages,
// "F0", or "F". Spans of equal length get the same form of label.
std::vector<Cell> draw_spans(const WorkerTimeline& worker, const Row& row, double scale) {
  std::vector<Cell> cells(to_column(1, scale));
  for (std::size_t index = 0; index < row.bars.size(); ++index) {
    const Bar& bar = row.bars[index];
    const int begin = to_column(bar.begin, scale);
    const int end = to_column(bar.end, scale);
    if (begin >= end) continue;
    const double width = std::min<double>(end - begin, bar.length() * scale + 1e-6);
    const std::string text = fitting_label(worker, row, index, width);
    for (int column = begin; column < end; ++column) {
      const std::size_t place = static_cast<std::size_t>(column - begin);
      const CellPart part = part_of_label(text, place);
      cells[column] = {part == kFill ? kFillSigns[bar.kind] : text[place], bar.kind, bar.chunk % 2, part};
    }
  }
  return cells;
}

// Lower-case letters that stand for no single span, but in every stretch of the row in proportion to the time. Each
// column shows the kind that is owed most, and what a kind did not get in one column it is owed in the next: the
// proportions hold even where every column has the same mixture.
std::vector<Cell> draw_density(const Row& row, double scale) {
  using Shares = std::array<double, kNumKinds + 1>;  // of a column, by kind; idle is last
  const int columns = to_column(1, scale);
  std::vector<Shares> shares(columns, Shares{});
  for (const Bar& bar : row.bars) {
    const double begin = bar.begin * scale;
    const double end = bar.end * scale;
    for (int column = static_cast<int>(begin); column < end && column < columns; ++column) {
      const double left = column;
      shares[column][bar.kind] += std::min(end, left + 1) - std::max(begin, left);
    }
  }
  std::vector<Cell> cells(columns);
  Shares owed{};
  for (int column = 0; column < columns; ++column) {
    const double busy = std::accumulate(shares[column].begin(), shares[column].end(), 0.0);
    shares[column][kIdle] = busy > 1 - 1e-9 ? 0 : 1 - busy;
    for (int kind = 0; kind <= kIdle; ++kind) {
      owed[kind] = shares[column][kind] > 0 ? owed[kind] + shares[column][kind] : 0;
    }
    const int kind = static_cast<int>(std::max_element(owed.begin(), owed.end()) - owed.begin());
    owed[kind] -= 1;
    if (kind == kIdle) continue;
    cells[column] = {static_cast<char>(std::tolower(chart::kind_letter(kind))), kind, 0, kSeveralSpans};
  }
  return cells;
}

// Indices into the terminal's 256 colours. Ink and paper are both set: legible on any background.
struct Paint {
  int paper;
  int ink;
  int fill_ink;
};

constexpr int kIdleInk = 244;
constexpr Paint kPaints[kNumKinds][2] = {
    {{25, 231, 68}, {68, 231, 111}},     // F blue
    {{117, 16, 74}, {153, 16, 110}},     // R light blue
    {{214, 16, 172}, {223, 16, 179}},    // B orange
    {{166, 231, 209}, {209, 16, 166}},   // I vermilion
    {{29, 231, 72}, {78, 16, 29}},       // W green
    {{133, 231, 175}, {133, 231, 175}},  // U purple
};

bool is_fill(const Cell& cell) { return cell.part == kFill; }

bool same_paint(const Cell& a, const Cell& b) {
  return a.kind == b.kind && a.shade == b.shade && is_fill(a) == is_fill(b);
}

std::string paint_code(const Cell& cell) {
  if (cell.kind == kIdle) return fmt::format("\x1b[0;38;5;{}m", kIdleInk);
  const Paint& paint = kPaints[cell.kind][cell.shade];
  return fmt::format("\x1b[38;5;{};48;5;{}m", is_fill(cell) ? paint.fill_ink : paint.ink, paint.paper);
}

void append_cells(std::string& out, const std::vector<Cell>& cells, bool colour) {
  for (std::size_t column = 0; column < cells.size(); ++column) {
    if (colour && (column == 0 || !same_paint(cells[column - 1], cells[column]))) out += paint_code(cells[column]);
    out += cells[column].symbol;
  }
  if (colour && !cells.empty()) out += kReset;
}

int visible_width(std::string_view text) { return static_cast<int>(num_characters(text)); }

std::string_view first_characters(std::string_view text, int width) {
  std::size_t bytes = 0;
  for (int taken = 0; bytes < text.size(); ++bytes) {
    if (!continues_character(text[bytes]) && ++taken > width) break;
  }
  return text.substr(0, bytes);
}

// A caption. The signs in front of it are those it explains, painted as in the chart.
struct Item {
  std::string text;
  std::vector<Cell> signs = {};
};

// The items two blanks apart, on as many lines as they need.
void append_items(std::string& out, const std::vector<Item>& items, const GanttOptions& options) {
  int used = 0;
  for (const Item& item : items) {
    const std::string_view text = first_characters(item.text, options.width);
    const int length = visible_width(text);
    if (length == 0) continue;
    const bool fits = used > 0 && used + 2 + length <= options.width;
    if (used > 0) out += fits ? "  " : "\n";
    used = fits ? used + 2 + length : length;
    const std::size_t num_signs = std::min(item.signs.size(), text.size());
    append_cells(out, {item.signs.begin(), item.signs.begin() + static_cast<std::ptrdiff_t>(num_signs)},
                 options.colour);
    out += text.substr(num_signs);
  }
  if (used > 0) out += '\n';
}

// A line: the worker's number, the chart between two bars, the busy share. A narrow line does without the busy share,
// a very narrow one without the number and the bars as well.
struct Layout {
  int number = 0;
  int columns = 0;
  bool busy = false;
  int indent() const { return number == 0 ? 0 : number + 2; }
};

Layout make_layout(int width, int num_rows) {
  const int number = static_cast<int>(std::to_string(std::max(0, num_rows - 1)).size());
  const int columns = width - number - 3;
  if (columns >= kLeastColumns + kBusyColumns) return {number, columns - kBusyColumns, true};
  if (columns >= kLeastColumns) return {number, columns, false};
  return {0, width, false};
}

std::string axis(double makespan_seconds, const Layout& layout, double scale) {
  std::string line(layout.indent(), ' ');
  for (const chart::Tick& tick : chart::make_ticks(makespan_seconds, std::max(1, layout.columns / 9))) {
    const int column = layout.indent() + to_column(tick.position, scale);
    const int used = visible_width(line);
    const bool touches = tick.position > 0 && column <= used;
    if (touches || column + visible_width(tick.label) > layout.indent() + layout.columns) continue;
    line.append(column - used, ' ');
    line += tick.label;
  }
  if (layout.busy) {
    line.append(layout.indent() + layout.columns + 2 - visible_width(line), ' ');
    line += "busy";
  }
  return line + '\n';
}

std::vector<Item> heading(const Timeline& timeline) {
  std::vector<Item> items = {{chart::format_name(timeline.name)}};
  for (std::string& size :
       chart::format_size(timeline.num_stages, timeline.num_workers(), timeline.num_micro_batches)) {
    items.push_back({std::move(size)});
  }
  return items;
}

// The signs that stand in the rows, so that the legend explains each of them and nothing else.
struct Signs {
  bool kinds[kNumKinds] = {};  // of the bars, drawn or too short for it
  bool fills[kNumKinds] = {};
  bool parts[kNumParts] = {};
  bool shades = false;

  void add(const Row& row, const std::vector<Cell>& cells) {
    for (const Bar& bar : row.bars) kinds[bar.kind] = true;
    for (const Cell& cell : cells) {
      if (is_fill(cell)) fills[cell.kind] = true;
      parts[cell.part] = true;
      shades = shades || cell.shade > 0;
    }
  }
};

Item explain_kind(int kind, bool has_fill) {
  Item item;
  item.signs.push_back({chart::kind_letter(kind), kind, 0, kLetter});
  if (has_fill) item.signs.push_back({kFillSigns[kind], kind, 0, kFill});
  for (const Cell& sign : item.signs) item.text += sign.symbol;
  item.text += fmt::format(" {}", chart::kind_name(kind));
  return item;
}

std::vector<Item> legend(const Signs& signs, bool colour) {
  std::vector<Item> items;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    if (signs.kinds[kind]) items.push_back(explain_kind(kind, signs.fills[kind]));
  }
  items.push_back({". idle", {Cell{}}});
  if (signs.parts[kSeveralSpans]) items.push_back({"lower case: several in a column"});
  if (signs.parts[kStageNumber]) {
    items.push_back({"2F1: stage 2, micro-batch 1"});
  } else if (signs.parts[kMicroBatch]) {
    items.push_back({"F1: micro-batch 1"});
  }
  if (colour && signs.shades) items.push_back({"lighter: every second stage of a worker"});
  return items;
}

}  // namespace

std::string to_gantt(const Timeline& timeline, const GanttOptions& requested) {
  GanttOptions options = requested;
  options.width = std::clamp(options.width, 1, kMaxWidth);
  const int num_rows = std::clamp(options.max_workers, 0, timeline.num_workers());
  std::vector<Row> rows;
  rows.reserve(num_rows);
  for (int worker = 0; worker < num_rows; ++worker) rows.push_back(chart::make_row(timeline, worker));
  Layout layout = make_layout(options.width, num_rows);
  const double scale = choose_scale(rows, layout.columns);
  layout.columns = to_column(1, scale);

  std::string out;
  append_items(out, heading(timeline), options);
  out += axis(timeline.makespan_seconds, layout, scale);
  Signs signs;
  for (int worker = 0; worker < num_rows; ++worker) {
    const Row& row = rows[worker];
    const std::vector<Cell> cells =
        is_dense(row, scale) ? draw_density(row, scale) : draw_spans(timeline.workers[worker], row, scale);
    signs.add(row, cells);
    if (layout.number > 0) out += fmt::format("{:>{}} |", worker, layout.number);
    append_cells(out, cells, options.colour);
    if (layout.number > 0) out += '|';
    if (layout.busy) out += fmt::format("{:>4.0f}%", 100 * row.busy_fraction);
    out += '\n';
  }
  if (num_rows < timeline.num_workers()) {
    append_items(out, {{fmt::format("… and {}", chart::count(timeline.num_workers() - num_rows, "more worker"))}},
                 options);
  }
  append_items(out, legend(signs, options.colour), options);
  append_items(out,
               {{"makespan " + chart::format_seconds(timeline.makespan_seconds)},
                {"bubble " + chart::format_percent(timeline.bubble_fraction)}},
               options);
  return out;
}

}  // namespace gpipe
