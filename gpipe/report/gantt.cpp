#include "gpipe/report/gantt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "gpipe/report/cells.h"
#include "gpipe/report/chart.h"
#include "gpipe/text/utf8.h"

namespace gpipe {
namespace {

using chart::Cell;
using chart::CellPart;
using chart::Row;

constexpr int kMaxWidth = 10000;
constexpr int kBusyColumns = 5;
constexpr int kLeastColumns = 8;
constexpr std::string_view kReset = "\x1b[0m";

// Indices into the terminal's 256 colours. Ink and paper are both set: legible on any background.
struct Paint {
  int paper;
  int ink;
  int fill_ink;
};

constexpr int kIdleInk = 244;
constexpr Paint kPaints[chart::kNumKinds][2] = {
    {{25, 231, 68}, {68, 231, 111}},     // F blue
    {{117, 16, 74}, {153, 16, 110}},     // R light blue
    {{214, 16, 172}, {223, 16, 179}},    // B orange
    {{166, 231, 209}, {209, 16, 166}},   // I vermilion
    {{29, 231, 72}, {78, 16, 29}},       // W green
    {{133, 231, 175}, {133, 231, 175}},  // U purple
};

bool is_fill(const Cell& cell) { return cell.part == CellPart::kFill; }

bool same_paint(const Cell& a, const Cell& b) {
  return a.kind == b.kind && a.shade == b.shade && is_fill(a) == is_fill(b);
}

std::string paint_code(const Cell& cell) {
  if (cell.kind == chart::kIdle) return fmt::format("\x1b[0;38;5;{}m", kIdleInk);
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
    const int column = layout.indent() + chart::to_column(tick.position, scale);
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

// Keeps a hostile name from moving the cursor, and every character at one column.
std::string printable_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char byte) { return byte < ' ' || byte > '~'; }, '?');
  return text;
}

std::string count(int number, const char* noun, const char* plural_ending) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : plural_ending);
}

std::vector<Item> heading(const Timeline& timeline) {
  std::vector<Item> items = {{printable_name(timeline.name)}, {count(timeline.num_stages, "stage", "s")}};
  if (timeline.num_workers() != timeline.num_stages) items.push_back({count(timeline.num_workers(), "worker", "s")});
  items.push_back({count(timeline.num_micro_batches, "micro-batch", "es")});
  return items;
}

// The signs that stand in the rows, so that the legend explains each of them and nothing else.
struct Signs {
  bool kinds[chart::kNumKinds] = {};  // of the bars, drawn or too short for it
  bool fills[chart::kNumKinds] = {};
  bool stages = false;
  bool micro_batches = false;
  bool several_spans = false;
  bool shades = false;

  void add(const Row& row, const std::vector<Cell>& cells) {
    for (const chart::Bar& bar : row.bars) kinds[bar.kind] = true;
    for (const Cell& cell : cells) {
      if (is_fill(cell)) fills[cell.kind] = true;
      stages = stages || cell.part == CellPart::kStage;
      micro_batches = micro_batches || cell.part == CellPart::kMicroBatch;
      several_spans = several_spans || cell.part == CellPart::kSeveralSpans;
      shades = shades || cell.shade > 0;
    }
  }
};

Item explain_kind(int kind, bool has_fill) {
  const auto painted = static_cast<std::int8_t>(kind);
  Item item;
  item.signs.push_back({chart::kind_letter(kind), painted, 0, CellPart::kLetter});
  if (has_fill) item.signs.push_back({chart::fill_sign(kind), painted, 0, CellPart::kFill});
  for (const Cell& sign : item.signs) item.text += sign.symbol;
  item.text += fmt::format(" {}", chart::kind_name(kind));
  return item;
}

std::vector<Item> legend(const Signs& signs, bool colour) {
  std::vector<Item> items;
  for (int kind = 0; kind < chart::kNumKinds; ++kind) {
    if (signs.kinds[kind]) items.push_back(explain_kind(kind, signs.fills[kind]));
  }
  items.push_back({". idle", {Cell{}}});
  if (signs.several_spans) items.push_back({"lower case: several in a column"});
  if (signs.stages) {
    items.push_back({"2F1: stage 2, micro-batch 1"});
  } else if (signs.micro_batches) {
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
  const double scale = chart::choose_scale(rows, layout.columns);
  layout.columns = chart::to_column(1, scale);

  std::string out;
  append_items(out, heading(timeline), options);
  out += axis(timeline.makespan_seconds, layout, scale);
  Signs signs;
  for (int worker = 0; worker < num_rows; ++worker) {
    const Row& row = rows[worker];
    const std::vector<Cell> cells = chart::is_dense(row, scale)
                                        ? chart::draw_density(row, scale)
                                        : chart::draw_spans(timeline.workers[worker], row, scale);
    signs.add(row, cells);
    if (layout.number > 0) out += fmt::format("{:>{}} |", worker, layout.number);
    append_cells(out, cells, options.colour);
    if (layout.number > 0) out += '|';
    if (layout.busy) out += fmt::format("{:>4.0f}%", 100 * row.busy_fraction);
    out += '\n';
  }
  if (num_rows < timeline.num_workers()) {
    append_items(out, {{fmt::format("… and {}", count(timeline.num_workers() - num_rows, "more worker", "s"))}},
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
