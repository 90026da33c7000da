#include "gpipe/schedule/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/nearest_name.h"

namespace gpipe {

const char* name(Recompute mode) {
  switch (mode) {
    case Recompute::kAlways:
      return "always";
    case Recompute::kExceptLast:
      return "except-last";
    case Recompute::kNever:
      return "never";
  }
  return "unknown";
}

Recompute parse_recompute(std::string_view word) {
  std::vector<std::string> names;
  for (const Recompute mode : {Recompute::kAlways, Recompute::kExceptLast, Recompute::kNever}) {
    if (word == name(mode)) return mode;
    names.push_back(name(mode));
  }
  const std::string nearest = nearest_name(word, names);
  throw InvalidArgument(fmt::format("there is no recompute mode \"{}\"{} The modes are always, except-last and never",
                                    word, nearest.empty() ? "." : fmt::format(": did you mean {}?", nearest)));
}

Schedule with_recompute(Schedule schedule, Recompute mode) {
  const int last = schedule.num_micro_batches - 1;
  for (auto& actions : schedule.workers) {
    actions.erase(std::remove_if(actions.begin(), actions.end(),
                                 [](const Action& action) { return action.kind == ActionKind::kRecompute; }),
                  actions.end());
    if (mode == Recompute::kNever) continue;
    std::vector<Action> with;
    with.reserve(actions.size() + actions.size() / 2);
    for (const Action& action : actions) {
      const Action forward{ActionKind::kForward, action.stage, action.micro_batch};
      const bool covered =
          makes_input_grad(action.kind) && !(mode == Recompute::kExceptLast && action.micro_batch == last);
      const bool still_there = !with.empty() && with.back() == forward;
      if (covered && !still_there) with.push_back({ActionKind::kRecompute, action.stage, action.micro_batch});
      with.push_back(action);
    }
    actions = std::move(with);
  }
  return schedule;
}

}  // namespace gpipe
