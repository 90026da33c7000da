// Flow: one kind of tensor from one stage to another, the unit of the transport. Derived, never written by hand.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

enum class FlowKind : std::uint8_t {
  kActivation,    // stage s -> s+1, sent by F, received by F
  kGradient,      // stage s+1 -> s, sent by B or I, received by B or I
  kSkip,          // a stashed tensor, straight to the stage that pops it; sent by F, received by F
  kSkipGradient,  // its gradient, straight back; sent by B or I, received by B or I
  kTie,           // gradient of a tied weight, once a step, to the stage that owns the weight; received by U, if any
};

struct Flow {
  FlowKind kind = FlowKind::kActivation;
  int source = 0;       // stage
  int destination = 0;  // stage
};

inline bool operator==(const Flow& a, const Flow& b) {
  return a.kind == b.kind && a.source == b.source && a.destination == b.destination;
}

// "activation 0 -> 1"
std::string to_string(const Flow& flow);

// A skip connection from the stage that stashes to the stage that pops.
struct SkipRoute {
  int from_stage = 0;
  int to_stage = 0;
};

// A weight used by `stage` but owned (summed and updated) by `owner`.
struct TieRoute {
  int owner = 0;
  int stage = 0;
};

// What the model adds to the chain. Routes between the same two stages share a flow; routes inside a stage need none.
struct Routes {
  std::vector<SkipRoute> skips;
  std::vector<TieRoute> ties;
};

// The flows of a schedule, and which of them each action of a stage takes from and puts to. Indices into `flows`.
struct FlowTable {
  std::vector<Flow> flows;
  std::vector<int> source_worker;       // of each flow
  std::vector<int> destination_worker;  // of each flow
  struct Stage {
    std::vector<int> forward_inputs;    // taken by F
    std::vector<int> forward_outputs;   // put by F
    std::vector<int> backward_inputs;   // taken by B or I
    std::vector<int> backward_outputs;  // put by B or I
    std::vector<int> step_outputs;      // put by the stage's last B or W of the step
    std::vector<int> update_inputs;     // taken by U
  };
  std::vector<Stage> stages;
  // Taken by each worker after its last action, for stages without U.
  std::vector<std::vector<int>> step_inputs;
  // Both ends on one worker: handed over in place, so a full flow never makes its sender wait.
  bool is_local(int flow) const { return source_worker[flow] == destination_worker[flow]; }
  // What the action takes from, and puts to; not what it puts once a step.
  const std::vector<int>& inputs(const Action& action) const {
    const Stage& stage = stages[action.stage];
    if (action.kind == ActionKind::kForward) return stage.forward_inputs;
    if (action.kind == ActionKind::kUpdate) return stage.update_inputs;
    return makes_input_grad(action.kind) ? stage.backward_inputs : none;
  }
  const std::vector<int>& outputs(const Action& action) const {
    const Stage& stage = stages[action.stage];
    if (action.kind == ActionKind::kForward) return stage.forward_outputs;
    return makes_input_grad(action.kind) ? stage.backward_outputs : none;
  }
  static inline const std::vector<int> none;
};

// REQUIRES: every stage has a worker. Throws InvalidArgument for a route to a stage that does not exist or a skip
// that does not go forward.
FlowTable make_flow_table(const Schedule& schedule, const Routes& routes = {});

}  // namespace gpipe
