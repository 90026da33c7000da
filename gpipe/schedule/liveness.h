// Liveness: how many micro-batches each stage holds at once. It follows from program order alone, whatever the timing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// What a stage holds while it works on a micro-batch. Without recompute, a micro-batch's activations live from F to B
// (or I). With it, they live during F, whose graph is dropped at its end, then the stage's input lives from F to R, and
// the activations again from R to B (or I). From I to W, what is deferred to W lives:
//
//   F ── activations ── B       F ── activations ── I ── deferred ── W       F ── input ── R ── activations ── B
struct Live {
  // What the micro-batch at work takes.
  enum class Work {
    kWhole,       // F, R or B
    kInputGrad,   // I
    kWeightGrad,  // W
  };

  int activations = 0;  // micro-batches whose activations are held, and the one at work
  int inputs = 0;       // other micro-batches, of which only R can bring the activations back: their input is held
  int deferred = 0;     // other micro-batches between their I and their W
  Work work = Work::kWhole;
};

// For each stage, the largest holdings that occur; none is covered by another, so the peak of any per-micro-batch
// weights is the largest over them.
//
// REQUIRES of all three: rule 1 of `validate`.
std::vector<std::vector<Live>> peak_live_by_stage(const Schedule& schedule);

// For each worker, the peak of activations held over all its stages, in micro-batches of the worker's whole share of
// the model: a stage counts one over the number of stages on the worker.
std::vector<double> peak_activations_by_worker(const Schedule& schedule);

// What a stage holds of one micro-batch when its backward is split.
struct SplitBytes {
  std::int64_t deferred_bytes = 0;             // from I to W, with what W needs of the input
  std::int64_t input_grad_working_bytes = 0;   // the most that is live during I, what is kept of the input apart
  std::int64_t weight_grad_working_bytes = 0;  // the most that is live during W; less than deferred_bytes means these
};

// All but the first are of one micro-batch.
struct StageBytes {
  std::int64_t static_bytes = 0;      // weights, gradients, optimizer state, buffers
  std::int64_t activation_bytes = 0;  // without the input
  std::int64_t input_bytes = 0;
  std::int64_t kept_input_bytes = 0;  // the part of the input that is held with the activations
  // The most that is live, the input apart, during F or R, and during the backward; less than activation_bytes means
  // these.
  std::int64_t forward_working_bytes = 0;
  std::int64_t backward_working_bytes = 0;
  std::optional<SplitBytes> split = std::nullopt;  // absent: W needs all that a whole backward does
};

// For each worker, the peak of bytes held over all its stages; the largest int64 if it is more than that. See
// Note [Peak bytes] in partition.h.
std::vector<std::int64_t> peak_bytes_by_worker(const Schedule& schedule, const std::vector<StageBytes>& stages);

}  // namespace gpipe
