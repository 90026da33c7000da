// StepReport: what a rank tells the others of a step that it has run.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/execute/pipeline.h"

namespace gpipe {

struct StepReport {
  std::chrono::steady_clock::time_point start;
  StepResult result;  // loss and metrics on the rank of the last stage; spans and memory of its own
  int worker = 0;
  std::vector<int> stages;  // its own
  std::string refusal;      // why the step must not count; empty: it does
};

Tensors encode(const StepReport& report);

// Completes the rank's own result by what all have reported, by rank. `one_clock` says that all ranks are on one host, so
// that their clocks can be compared; otherwise they count as having started together. The result of rank `last` counts, and
// its refusal is returned.
std::string merge(StepResult& own, const std::vector<Tensors>& of_rank, std::size_t last, bool one_clock);

}  // namespace gpipe
