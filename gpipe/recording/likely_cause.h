// From a difference between recordings to a finding: where it was made, and why, as far as can be told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpipe/recording/first_difference.h"
#include "gpipe/recording/recorded_run.h"
#include "gpipe/recording/verification.h"

namespace gpipe::detail {

// Note [Probes]
// ~~~~~~~~~~~~~
// A layer whose output differs for the same input and weights is run again by itself: some times on one input, in the
// same random stream, then after a pause as often again. What it returns tells apart
//
//   always the same               it depends on what others do at the same time: a race
//   a libtorch generator drew     a generator of its own
//   a jump behind the pause       a clock: far more has changed in the pause than between two calls
//   ascending, or periodic        a counter: a state
//   anything else                 a generator
constexpr int kProbeCalls = 12;
LikelyCause cause_of(const Probe& probe);

// What is known about the run in which a difference was seen.
struct SeenIn {
  std::string run;               // its name
  bool is_repeat = false;        // the reference's settings once more
  const Probe* probe = nullptr;  // of the layer; null: it was not probed
};

// The layer that a probe could tell more about; nothing if the difference is not in what a layer or the loss returns.
std::optional<int> layer_to_probe(const RecordedDifference& difference);
// Whether the gradients on their way back could tell more about where it was made.
bool needs_arrivals(const RecordedDifference& difference);

VerifyFinding explain(const RecordedDifference& difference, const RecordedPipeline& pipeline, const SeenIn& seen);

// Replicas, which should have the same gradients, buffers and weights behind each step; nothing if they have.
std::optional<VerifyFinding> explain_copies(const RecordedPipeline& first, const RecordedPipeline& other,
                                            const std::string& run);

// What one run tells by itself: a loss that is no mean over rows, weights that are not registered.
std::vector<VerifyFinding> findings_in(const RecordedRun& run, const std::string& name);
// What is no fault, but good to know: a weight of the loss function itself.
std::vector<std::string> notes_in(const RecordedRun& run);

}  // namespace gpipe::detail
