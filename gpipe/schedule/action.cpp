#include "gpipe/schedule/action.h"

#include <fmt/format.h>

namespace gpipe {

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kRecompute:
      return 'R';
    case ActionKind::kBackward:
      return 'B';
    case ActionKind::kInputGrad:
      return 'I';
    case ActionKind::kWeightGrad:
      return 'W';
  }
  return '?';
}

const char* name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kInputGrad:
      return "input gradient";
    case ActionKind::kWeightGrad:
      return "weight gradient";
  }
  return "unknown";
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, letter(action.kind), action.micro_batch);
}

}  // namespace gpipe
