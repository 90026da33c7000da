// Prediction against measurement: two timelines of one schedule, side by side.
//
//     1f1b  2 stages  2 micro-batches
//
//             predicted  measured  ratio
//     step       9.5 ms     11 ms  0.864
//     bubble      31.6%     31.8%
//
//     stage  action    number  predicted  measured  ratio  all predicted  all measured
//         0  forward        2       1 ms      1 ms      1           2 ms          2 ms
//         0  backward       2       2 ms    2.5 ms    0.8           4 ms          5 ms
//     ...
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/report/timeline.h"

namespace gpipe {

template <typename Number>
struct ComparedNumbers {
  Number predicted = 0;
  Number measured = 0;
  // Of the prediction to the measurement; 1 if both are zero, infinite if only the measurement is.
  double ratio() const {
    if (measured == 0) return predicted == 0 ? 1 : std::numeric_limits<double>::infinity();
    return static_cast<double>(predicted) / static_cast<double>(measured);
  }
};
using Compared = ComparedNumbers<double>;
using ComparedBytes = ComparedNumbers<std::int64_t>;

// All actions of one kind of one stage.
struct KindComparison {
  ActionKind kind = ActionKind::kForward;
  int num_actions = 0;
  Compared mean_seconds;
  Compared total_seconds;
};

struct StageComparison {
  std::vector<KindComparison> kinds;  // those that occur, in the order of ActionKind
  std::optional<ComparedBytes> peak_bytes;
};

struct WorkerComparison {
  Compared busy_seconds;
  Compared idle_seconds;
  Compared update_seconds;                  // the optimizer step; it is part of the busy seconds
  std::optional<ComparedBytes> peak_bytes;  // if both timelines know it
};

struct Comparison {
  std::string name;  // of the schedule
  int num_micro_batches = 0;
  Compared step_seconds;
  Compared bubble_fraction;
  std::vector<StageComparison> stages;
  std::vector<WorkerComparison> workers;
};

// One entry a stage each, or none at all.
struct StagePeakBytes {
  std::vector<std::int64_t> predicted;
  std::vector<std::int64_t> measured;
};

// Throws InvalidArgument, naming the first difference, unless both are of one schedule: the same workers, stages,
// micro-batches and actions in the same order; and unless the peaks have one entry a stage, or none.
Comparison compare(const Timeline& predicted, const Timeline& measured, const StagePeakBytes& peak_bytes = {});

// The form above, then the workers and the stages' bytes. Lines are at most `width` columns long as far as leaving out
// the totals and shortening words to letters can make them; of stages and workers beyond 64 only the number is told.
std::string to_text(const Comparison& comparison, int width = 100);

// Everything; a ratio that is infinite is null.
std::string to_json(const Comparison& comparison);

}  // namespace gpipe
