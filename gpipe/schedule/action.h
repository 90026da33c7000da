// Action: one thing a stage does, with one micro-batch or once a step.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe {

enum class ActionKind : std::uint8_t {
  kForward,     // F: run the stage's layers
  kRecompute,   // R: run them again, to get back the activations the forward dropped
  kBackward,    // B: gradients of the input and of the weights together
  kInputGrad,   // I: gradient of the input, which the previous stage waits for, and of weights that are not deferred
  kWeightGrad,  // W: gradients of the deferred weights, any time after I
  kUpdate,      // U: the stage's weights take their optimizer step, once its gradients are complete
};
constexpr int kNumActionKinds = 6;

struct Action {
  constexpr Action() = default;
  constexpr Action(ActionKind action_kind, std::int32_t action_stage, std::int32_t action_micro_batch)
      : kind(action_kind), stage(action_stage), micro_batch(action_micro_batch) {}

  ActionKind kind = ActionKind::kForward;
  // A backward that PyTorch's CSV form writes into one cell with the forward before it, "(0F5;7B2)OVERLAP_F_B". Here
  // the two run in this order. Not part of equality.
  bool shares_cell = false;
  std::int32_t stage = 0;
  std::int32_t micro_batch = 0;  // of an update, which has none, 0
};

inline bool operator==(const Action& a, const Action& b) {
  return a.kind == b.kind && a.stage == b.stage && a.micro_batch == b.micro_batch;
}
inline bool operator!=(const Action& a, const Action& b) { return !(a == b); }

// 'F', 'R', 'B', 'I', 'W' or 'U'.
char letter(ActionKind kind);

// "forward", "recompute", "backward", "input gradient", "weight gradient", "update".
const char* name(ActionKind kind);

// Sends the input's gradient to the previous stage: B or I.
inline bool makes_input_grad(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kInputGrad;
}

// Adds the last of the stage's weight gradients and is the last to need its activations: B or W.
inline bool makes_weight_grad(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kWeightGrad;
}

// PyTorch's cell: stage, letter, micro-batch, such as "1B2"; of an update "1U".
std::string to_string(const Action& action);

}  // namespace gpipe
