// Partition: the exact best way to cut a chain of layers into consecutive stages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "gpipe/plan/costs.h"
#include "gpipe/plan/profile.h"
#include "gpipe/schedule/liveness.h"

namespace gpipe {

// Among equals, both take the least max(t), then the least sum(t), then the least sum(t²), then the partition whose
// first stages have the fewest layers. All comparisons are exact: see Note [Ticks] in intervals.h.
enum class Objective {
  kMakespan,      // sum(t) + (M-1)·max(t) over the stages' seconds t: a step of gpipe or 1f1b
  kSlowestStage,  // max(t)
};

// `partition` takes no more layers than this: its time, and with skips its memory, grow with their square.
// With skips and different links, its memory also grows with the number of these.
constexpr int kMaxPartitionLayers = 5000;

struct PartitionOptions {
  int num_stages = 1;
  int num_micro_batches = 1;
  Objective objective = Objective::kMakespan;
  bool backward = true;    // false: forwards only; neither backward_seconds nor gradient messages count
  bool recompute = false;  // a stage's time includes a second forward
  // One per stage: the share of its micro-batches, 0 to 1, that run the second forward; empty = all, if `recompute`.
  std::vector<double> recompute_share;
  LinkCosts link;
  std::optional<std::int64_t> memory_limit_bytes;  // of each stage
  std::vector<WorkerCosts> workers;                // one per stage, if they are not all alike; see workers_by_stage
  // Per stage, what it holds at once: peak_live_by_stage; empty = the activations of one micro-batch each.
  std::vector<std::vector<Live>> live;
  // The same for another number of stages, empty if there cannot be as many; asked only to find the number that would
  // fit. If every stage of `live` holds activations, so must every stage of these. Absent = as in `live`, counted from
  // the last stage; stages in front of those repeat the first.
  std::function<std::vector<std::vector<Live>>(int num_stages)> live_for;
  int optimizer_slots = 2;  // tensors of optimizer state per weight: 0 SGD, 1 momentum or RMSprop, 2 Adam
};

struct PartitionStage {
  int num_layers = 0;
  double seconds = 0;      // one micro-batch: compute and the messages the stage sends
  std::int64_t bytes = 0;  // peak
};

struct Partition {
  std::vector<PartitionStage> stages;
  double slowest_seconds = 0;
  double makespan_seconds = 0;  // sum(t) + (M-1)·max(t)
};

// Note [Peak bytes]
// A stage of layers [begin, end) holds at most
//   static + the most, over `live`, of
//     (activations - 1) · (A + kept) + inputs · I + deferred · D + (work if activations >= 1)
// One micro-batch is worked on, the others are held:
//   static = parameter_bytes + gradient_bytes · (1 + optimizer_slots) + buffer_bytes
//   A      = activation_bytes, without kept_output_bytes of layer end-1 unless the model ends there: the next stage
//            receives that tensor, and it counts as its input from then on
//   I      = output_bytes of layer begin-1 and the bytes of the skips stashed before the stage and popped in it
//   kept   = what of the input the graph holds: kept_output_bytes of layer begin-1, and the skips
//   D      = deferred_bytes, without deferred_output_bytes of layer end-1 unless the model ends there, and with those
//            of layer begin-1: what is held from an input gradient to its weight gradient. Skips are not: they are
//            added up, or put together, before a weight sees them
//   work   = the larger of I + Wf, in a forward or a recompute, and kept + Wb, in a backward; kept + Wi in an input
//            gradient; Ww in a weight gradient
//   Wf, Wb = the most, over the layers, of forward_working_bytes, or backward_working_bytes, and activation_bytes of
//            the layers before it in the stage; the first layer's input counts in I only
//   Wi     = the most, over the layers, of input_grad_working_bytes, activation_bytes of the layers before it and what
//            those behind it have deferred
//   Ww     = the most, over the layers, of weight_grad_working_bytes and deferred_bytes of the layers before it
// If nothing was deferred before layer begin, the stage's input needs no gradient: nothing waits for its input
// gradients, and all of the backward is left to the weight gradients. Then, where the stage itself defers anything,
//   D      = A + kept + the gradients of what the stage hands on, which the loss has none of
//   Ww     = kept + Wb
// A partition takes for these gradients the largest of any cut within the stage or at its end, and Wi as above, without
// what is deferred, so that a stage with more layers never seems to hold less. If no layer has deferred_bytes, D = A +
// kept, and an input or weight gradient works as a backward.
//
// A forward counts with its whole input, and so does a recompute, although its later layers may run when the input is
// gone; a backward holds `kept`, less than that. A forward that will be recomputed needs Wf too: its graph is dropped
// at its end. Messages that wait for their receiver are not counted. Bytes end at 2^63-1.

// A stage of layers [begin, end), at least one, takes
//   seconds = (forward + backward [+ forward again]) / speed
//           + one message to the next stage of output_bytes of layer end-1, one to the previous of layer begin-1
//           + one message for each skip stashed in it and popped behind it, and one for each the other way round
//   bytes   = as in Note [Peak bytes]
// where a message takes the latency of its link and its transfer. What is sent forward takes the link to the next
// stage, what is sent back the one to the previous stage; a skip that goes further counts like that, too.
//
// Throws InvalidArgument for options out of range (more stages than layers among them) or a profile that check_profile
// refuses, and InfeasibleError when no partition fits the memory limits; other numbers of stages are looked at only if
// all have the same limit. Takes O(stages · layers²) for kSlowestStage;
// for kMakespan a few times as much, and less for each further bound on max(t) that has to be tried.
Partition partition(const Profile& profile, const PartitionOptions& options);

}  // namespace gpipe
