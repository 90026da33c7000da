#include "gpipe/checkpoint/scheduler_state.h"

#include <c10/util/Type.h>
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "gpipe/error.h"
#include "gpipe/text/json.h"

namespace gpipe {
namespace {

// Opens what schedulers keep for classes that are derived from theirs.
struct OpenScheduler : torch::optim::LRScheduler {
  static auto& num_steps(torch::optim::LRScheduler& scheduler) { return scheduler.*(&OpenScheduler::step_count_); }
  static auto num_steps(const torch::optim::LRScheduler& scheduler) { return scheduler.*(&OpenScheduler::step_count_); }
  static std::vector<double> rates(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&OpenScheduler::get_current_lrs))();
  }
};

std::string scheduler_type(const torch::optim::LRScheduler& scheduler) {
  return c10::demangle(typeid(scheduler).name());
}

}  // namespace

void save_scheduler(TrainingState& state, const torch::optim::LRScheduler& scheduler) {
  state.learning_rate =
      nlohmann::json{{"scheduler", scheduler_type(scheduler)}, {"steps", OpenScheduler::num_steps(scheduler)}}.dump();
}

void load_scheduler(TrainingState& state, torch::optim::LRScheduler& scheduler) {
  const nlohmann::json saved = find_json_document(state.learning_rate).value_or(nullptr);
  const auto number = [&]() -> const nlohmann::json* {
    if (!saved.is_object() || !saved.contains("scheduler") || !saved.contains("steps")) return nullptr;
    const nlohmann::json& steps = saved["steps"];
    const bool fits = steps.is_number_unsigned() && steps <= std::numeric_limits<unsigned>::max();
    return fits && saved["scheduler"].is_string() ? &steps : nullptr;
  }();
  if (number == nullptr) {
    throw InvalidArgument(fmt::format(
        "the checkpoint holds no learning rate scheduler, but {}; put one in with save_scheduler before it is saved",
        state.learning_rate.empty() ? "nothing" : "\"" + state.learning_rate + "\""));
  }
  if (saved["scheduler"] != scheduler_type(scheduler)) {
    throw InvalidArgument(
        fmt::format("the checkpoint holds the state of a {}, but this is a {}; make the same scheduler",
                    saved["scheduler"].get<std::string>(), scheduler_type(scheduler)));
  }
  OpenScheduler::num_steps(scheduler) = number->get<unsigned>();
  const std::vector<double> rates = OpenScheduler::rates(scheduler);
  if (rates == state.learning_rates) return;
  state.warnings.push_back(
      fmt::format("the learning rate is {}, but was {} when the checkpoint was saved: the training departs from one "
                  "without a break; call load_checkpoint before load_scheduler, and set no other rate",
                  fmt::join(rates, ", "), fmt::join(state.learning_rates, ", ")));
}

}  // namespace gpipe
