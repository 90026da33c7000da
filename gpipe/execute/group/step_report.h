// StepReport: what a rank tells the others of a step that it has run.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/execute/group/loss_parts.h"
#include "gpipe/execute/values/step_result.h"
#include "gpipe/launch/world.h"
#include "gpipe/model/micro_batch.h"

namespace gpipe::detail {

struct StepReport {
  std::chrono::steady_clock::time_point start;
  LossParts loss;  // on the rank of the last stage
  int worker = 0;
  std::vector<int> stages;  // its own
  std::string refusal;      // why the step must not count; empty: it does
};

class WireRecord;

// `own` has the spans and the memory of the rank.
WireRecord to_record(const StepReport& report, const StepResult& own);

// Completes the rank's own result by what all have reported, by rank: timeline and memory of its replica, loss and
// metrics of the last workers of all replicas. The first refusal of one of those is returned; empty: there is none. If
// all ranks are on one host, their clocks are compared; otherwise they count as having started together. Throws
// InvalidArgument for a record that is no report.
std::string merge(StepResult& own, const std::vector<WireRecord>& of_rank, const World& world, int last_worker);

}  // namespace gpipe::detail
