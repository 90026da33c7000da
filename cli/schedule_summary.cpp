#include "cli/schedule_summary.h"

#include <fmt/format.h>

#include <array>

namespace gpipe::cli {

std::string count_of(std::int64_t count, const std::string& thing) {
  const char* ending = count == 1 ? "" : thing.back() == 'h' ? "es" : "s";
  return fmt::format("{} {}{}", count, thing, ending);
}

std::string describe_size(int num_workers, int num_stages, int num_micro_batches) {
  return fmt::format("{}, {}, {}", count_of(num_workers, "worker"), count_of(num_stages, "stage"),
                     count_of(num_micro_batches, "micro-batch"));
}

std::string count_kinds(const std::vector<Action>& actions) {
  constexpr ActionKind kKinds[] = {ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward,
                                   ActionKind::kInputGrad, ActionKind::kWeightGrad};
  std::array<std::int64_t, std::size(kKinds)> counts{};
  for (const Action& action : actions) ++counts[static_cast<std::size_t>(action.kind)];
  std::vector<std::string> parts;
  for (const ActionKind kind : kKinds) {
    const std::int64_t count = counts[static_cast<std::size_t>(kind)];
    if (count > 0) parts.push_back(fmt::format("{} {}", count, letter(kind)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace gpipe::cli
