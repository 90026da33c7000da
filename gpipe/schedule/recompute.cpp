#include "gpipe/schedule/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe {
namespace {

using detail::nearest_name;

constexpr std::array<const char*, 4> kNames = {"always", "except-last", "never", "auto"};  // by Recompute

void check_chosen(Recompute mode) {
  if (mode != Recompute::kAuto) return;
  throw InvalidArgument(
      "recompute is auto, which only a plan can choose; take the modes from it, or give always, except-last or never");
}

// `mode_of(stage)` is how that stage recomputes.
template <typename ModeOf>
Schedule insert(Schedule schedule, const ModeOf& mode_of) {
  const int last = schedule.num_micro_batches - 1;
  for (auto& actions : schedule.workers) {
    std::vector<Action> with;
    with.reserve(actions.size() + actions.size() / 2);
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kRecompute) continue;
      const Recompute mode = mode_of(action.stage);
      const Action forward{ActionKind::kForward, action.stage, action.micro_batch};
      const bool covered = makes_input_grad(action.kind) && mode != Recompute::kNever &&
                           !(mode == Recompute::kExceptLast && action.micro_batch == last);
      const bool still_there = !with.empty() && with.back() == forward;
      if (covered && !still_there) with.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
      with.push_back(action);
    }
    actions = std::move(with);
  }
  return schedule;
}

}  // namespace

const char* name(Recompute mode) { return kNames.at(static_cast<std::size_t>(mode)); }

Recompute parse_recompute(std::string_view word) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), word);
  if (found != kNames.end()) return static_cast<Recompute>(found - kNames.begin());
  const std::string nearest = nearest_name(word, {kNames.begin(), kNames.end()});
  throw InvalidArgument(
      fmt::format("there is no recompute mode \"{}\"{} The modes are always, except-last, never and auto", word,
                  nearest.empty() ? "." : fmt::format(": did you mean {}?", nearest)));
}

Schedule with_recompute(Schedule schedule, Recompute mode) {
  check_chosen(mode);
  return insert(std::move(schedule), [mode](int) { return mode; });
}

Schedule with_recompute(Schedule schedule, const std::vector<Recompute>& by_stage) {
  if (static_cast<int>(by_stage.size()) != schedule.num_stages) {
    throw InvalidArgument(fmt::format("recompute modes are given for {} stages, but the schedule has {}",
                                      by_stage.size(), schedule.num_stages));
  }
  for (const Recompute mode : by_stage) check_chosen(mode);
  return insert(std::move(schedule), [&](int stage) {
    const bool exists = stage >= 0 && stage < static_cast<int>(by_stage.size());
    return exists ? by_stage[stage] : Recompute::kNever;
  });
}

}  // namespace gpipe
