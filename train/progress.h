// How a training or an evaluation shows where it is: one line that rewrites itself on a terminal, a plain line now and
// then elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::train {

// What is unknown is left out of the line: a value that was not set, a count that is zero of zero.
struct Progress {
  std::string phase = "train";  // or "evaluate"
  std::int64_t epoch = 0;       // from one
  std::int64_t epochs = 0;
  std::int64_t step = 0;  // from one; of the epoch, or of the training if that is what `steps` counts
  std::int64_t steps = 0;
  std::string step_name = "step";  // what is counted
  std::optional<double> loss;
  std::optional<double> items_per_second;
  std::string unit = "samples";  // or "tokens"
  std::optional<double> eta_seconds;
  std::optional<double> bubble_fraction;
  std::optional<double> learning_rate;
  std::vector<std::int64_t> peak_bytes;  // a stage each
};

// "train  epoch 2/10  step 37/469  loss 0.4321  1523 samples/s  ETA 1:05  bubble 12.3 %  peak 81 MiB, 64 MiB  lr
// 0.001", without the parts at the end that do not fit into `width` columns; the phase is always there, cut if need be.
std::string progress_line(const Progress& progress, std::size_t width);

// The same, line after line: a field stays where it is and as wide as it ever was, so that none jumps, and what was
// left out once for want of room stays out until the width or the phase is another one.
class ProgressLayout {
 public:
  std::string line(const Progress& progress, std::size_t width);

 private:
  std::string phase_;
  std::size_t width_ = 0;
  std::size_t num_shown_ = 0;
  std::vector<std::size_t> widths_;  // of the fields
};

// How far an evaluation is.
struct Evaluated {
  std::string phase = "evaluate";  // or "translate"
  std::string unit;                // "samples"
  std::int64_t num_done = 0;
  std::int64_t num_all = 0;
};

// "evaluate  samples 2048/10000  1523 samples/s  ETA 0:05": `seconds` after the beginning of the phase.
Progress progress_of(const Evaluated& evaluated, double seconds);

// "1523", "8.37"
std::string format_rate(double rate);

// "0:07", "1:05", "2:03:04", "3 d 04:00"
std::string format_duration(double seconds);

struct ProgressStyle {
  bool is_terminal = false;
  std::function<int()> columns;        // of the terminal, asked for every line since windows change; REQUIRED on one
  double live_interval_seconds = 0.1;  // least time between two lines of a terminal
  double plain_interval_seconds = 10;  // and elsewhere
};

// Passes text to `write`, which has to show it at once. Times are seconds of any clock that does not go back, passed
// in. Confined to its thread.
class ProgressReporter {
 public:
  using Write = std::function<void(std::string_view)>;

  ProgressReporter(Write write, ProgressStyle style) : write_(std::move(write)), style_(std::move(style)) {}

  // Where it was quiet before: the first update is silent unless the interval has passed since `now_seconds`.
  void begin(double now_seconds) { last_seconds_ = now_seconds; }

  // What comes next is of another kind: on a terminal it is shown at once.
  void begin_phase() {
    if (style_.is_terminal) last_seconds_.reset();
  }

  // After a step. Cheap, and silent unless the interval has passed.
  void update(const Progress& progress, double now_seconds);

  // A message of other kind, above the live line.
  void print(std::string_view line);

  // Removes the live line: nothing of it is left when something else is printed. May be called at any time.
  void clear();

 private:
  std::string fitting_line(const Progress& progress);

  Write write_;
  ProgressStyle style_;
  std::optional<double> last_seconds_;
  std::string live_line_;
  ProgressLayout layout_;
};

// Shows how far an evaluation is, with the rate since the beginning of its phase. Confined to its thread.
class EvaluationReporter {
 public:
  // REQUIRES: `reporter` outlives it.
  explicit EvaluationReporter(ProgressReporter& reporter) : reporter_(reporter) {}
  void update(const Evaluated& evaluated, double now_seconds);

 private:
  ProgressReporter& reporter_;
  std::string phase_;
  double begin_seconds_ = 0;
};

// Writes to standard output (1) or standard error (2), and is silent in all but the first of processes that work
// together.
ProgressReporter make_progress_reporter(int fd);

// Of a clock for ProgressReporter.
double clock_seconds();

}  // namespace gpipe::train
