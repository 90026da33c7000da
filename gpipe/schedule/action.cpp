#include "gpipe/schedule/action.h"

#include <fmt/format.h>

#include <array>

namespace gpipe {
namespace {

// By ActionKind.
constexpr std::array<char, kNumActionKinds> kLetters = {'F', 'R', 'B', 'I', 'W', 'U'};
constexpr std::array<const char*, kNumActionKinds> kActionNames = {"forward",        "recompute",       "backward",
                                                                   "input gradient", "weight gradient", "update"};

}  // namespace

char letter(ActionKind kind) { return kLetters.at(static_cast<std::size_t>(kind)); }

const char* name(ActionKind kind) { return kActionNames.at(static_cast<std::size_t>(kind)); }

std::string to_string(const Action& action) {
  if (action.kind == ActionKind::kUpdate) return fmt::format("{}U", action.stage);
  return fmt::format("{}{}{}", action.stage, letter(action.kind), action.micro_batch);
}

}  // namespace gpipe
