#include "gpipe/report/cells.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>

namespace gpipe::chart {
namespace {

constexpr std::string_view kFill = "-~=:#+";  // one per kind

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
      if (!refine(bar.begin) || (bar.kind != kUpdate && !refine(bar.end))) return 0;
    }
  }
  return step;
}

std::string fitting_label(const WorkerTimeline& worker, const Row& row, std::size_t bar, double width) {
  if (bar < worker.spans.size()) {
    for (const bool with_stage : {true, false}) {
      if (with_stage && row.num_chunks == 1) continue;
      std::string text = label(worker.spans[bar].action, with_stage);
      const std::size_t needed = text.size() + (with_stage ? 1 : 0);  // "0F00F1" could not be read
      if (static_cast<double>(needed) <= width) return text;
    }
  }
  return std::string(1, kind_letter(row.bars[bar].kind));
}

// Of the label "2F0", followed by the fill.
CellPart part_of_label(const std::string& text, std::size_t place) {
  if (place >= text.size()) return CellPart::kFill;
  const std::size_t letter = text.find_first_not_of("0123456789");
  if (place == letter) return CellPart::kLetter;
  return place < letter ? CellPart::kStage : CellPart::kMicroBatch;
}

using Shares = std::array<double, kNumKinds + 1>;  // of a column, by kind; idle is last

std::vector<Shares> measure_columns(const Row& row, double scale) {
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
  for (Shares& column : shares) {
    double busy = 0;
    for (int kind = 0; kind < kNumKinds; ++kind) busy += column[kind];
    column[kIdle] = busy > 1 - 1e-9 ? 0 : 1 - busy;
  }
  return shares;
}

}  // namespace

char fill_sign(int kind) { return kFill[static_cast<std::size_t>(kind)]; }

int to_column(double position, double scale) { return static_cast<int>(std::lround(position * scale)); }

double choose_scale(const std::vector<Row>& rows, int columns) {
  const double step = grid_step(rows, 1.0 / columns);
  return step > 0 ? std::floor(columns * step + 1e-6) / step : columns;
}

bool is_dense(const Row& row, double scale) {
  double length = 0;
  std::int64_t count = 0;
  for (const Bar& bar : row.bars) {
    length += bar.length();
    count += bar.length() > 0 ? 1 : 0;
  }
  return length * scale < static_cast<double>(count) * (1 - 1e-9);
}

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
      cells[column] = {part == CellPart::kFill ? fill_sign(bar.kind) : text[place], static_cast<std::int8_t>(bar.kind),
                       static_cast<std::int8_t>(bar.chunk % 2), part};
    }
  }
  return cells;
}

// Each column shows the kind that is owed most, and what a kind did not get in one column it is owed in the next: the
// proportions hold even where every column has the same mixture.
std::vector<Cell> draw_density(const Row& row, double scale) {
  const std::vector<Shares> shares = measure_columns(row, scale);
  std::vector<Cell> cells(shares.size());
  Shares owed{};
  for (std::size_t column = 0; column < cells.size(); ++column) {
    for (int kind = 0; kind <= kIdle; ++kind) {
      owed[kind] = shares[column][kind] > 0 ? owed[kind] + shares[column][kind] : 0;
    }
    const int kind = static_cast<int>(std::max_element(owed.begin(), owed.end()) - owed.begin());
    owed[kind] -= 1;
    if (kind == kIdle) continue;
    const char symbol = static_cast<char>(std::tolower(kind_letter(kind)));
    cells[column] = {symbol, static_cast<std::int8_t>(kind), 0, CellPart::kSeveralSpans};
  }
  return cells;
}

}  // namespace gpipe::chart
