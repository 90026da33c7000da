#include "gpipe/schedule/recompute.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/text/nearest_name.h"

namespace gpipe {
namespace {

void check_chosen(Recompute mode) {
  if (mode != Recompute::kAuto) return;
  throw InvalidArgument(
      "recompute is auto, which only a plan can choose; take the modes from it, or give always, except-last or never");
}

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

const char* name(Recompute mode) {
  switch (mode) {
    case Recompute::kAlways:
      return "always";
    case Recompute::kExceptLast:
      return "except-last";
    case Recompute::kNever:
      return "never";
    case Recompute::kAuto:
      return "auto";
  }
  return "unknown";
}

Recompute parse_recompute(std::string_view word) {
  std::vector<std::string> names;
  for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever, Recompute::kAuto}) {
    if (word == name(mode)) return mode;
    names.push_back(name(mode));
  }
  const std::string nearest = nearest_name(word, names);
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
