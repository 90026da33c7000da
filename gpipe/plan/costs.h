// Costs: what the actions of each stage cost in time and bytes. The simulator's input.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpipe/plan/worker_costs.h"
#include "gpipe/schedule/flow.h"
#include "gpipe/schedule/liveness.h"

namespace gpipe {

// Per micro-batch, except where it says otherwise.
struct StageCosts {
  double forward_seconds = 1;
  double backward_seconds = 2;
  double input_grad_seconds = 1;
  double weight_grad_seconds = 1;
  double recompute_seconds = 1;
  double update_seconds = 0;          // optimizer step, once a step
  std::int64_t static_bytes = 0;      // weights, their gradients, the optimizer's state, buffers
  std::int64_t activation_bytes = 0;  // kept from F (or R) to the end of B or I
  std::int64_t input_bytes = 0;       // kept from F to R when the stage recomputes
  std::int64_t output_bytes = 0;      // of one activation message, and of its gradient
  std::int64_t kept_input_bytes = 0;  // of the input, kept with the activations
  // The most that is live, the input apart, during F or R, and during B.
  std::int64_t forward_working_bytes = 0;
  std::int64_t backward_working_bytes = 0;
  std::optional<SplitBytes> split = std::nullopt;  // absent: W needs all that B does
};

inline StageBytes stage_bytes(const StageCosts& costs) {
  return {costs.static_bytes,          costs.activation_bytes,       costs.input_bytes, costs.kept_input_bytes,
          costs.forward_working_bytes, costs.backward_working_bytes, costs.split};
}

struct Costs {
  std::vector<StageCosts> stages;        // one per stage
  LinkCosts link;                        // between any two workers; stages on one worker hand over for nothing
  std::vector<WorkerCosts> workers;      // one per worker; empty = all alike. See link_between
  Routes routes;                         // skips and ties
  std::vector<std::int64_t> skip_bytes;  // one per routes.skips
  std::vector<std::int64_t> tie_bytes;   // one per routes.ties
};

inline std::vector<StageBytes> stage_bytes(const Costs& costs) {
  std::vector<StageBytes> bytes;
  for (const StageCosts& stage : costs.stages) bytes.push_back(stage_bytes(stage));
  return bytes;
}

}  // namespace gpipe
