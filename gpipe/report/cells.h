// Cells: a row of a timeline as characters of fixed width, not yet painted.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/report/chart.h"

namespace gpipe::chart {

inline constexpr int kIdle = kNumKinds;

// What a character of a row stands for.
enum class CellPart : std::uint8_t { kNothing, kStage, kLetter, kMicroBatch, kFill, kSeveralSpans };

struct Cell {
  char symbol = '.';
  std::int8_t kind = kIdle;
  std::int8_t shade = 0;  // 0 or 1, to tell neighbouring chunks apart
  CellPart part = CellPart::kNothing;
};

// The sign that fills a span of the kind behind its label.
char fill_sign(int kind);

// Columns the whole makespan takes, `columns` or fewer. Where all actions begin and end on a grid that is coarse
// enough, every step of it gets the same whole number of columns.
double choose_scale(const std::vector<Row>& rows, int columns);

int to_column(double position, double scale);

// More bars than columns to show them in.
bool is_dense(const Row& row, double scale);

// Each span in its own columns, with the longest label that fits in front: "2F0" if the worker has several stages,
// "F0", or "F". Spans of equal length get the same form of label.
std::vector<Cell> draw_spans(const WorkerTimeline& worker, const Row& row, double scale);

// Lower-case letters that stand for no single span, but in every stretch of the row in proportion to the time.
std::vector<Cell> draw_density(const Row& row, double scale);

}  // namespace gpipe::chart
