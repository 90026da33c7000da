#include "train/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "gpipe/error.h"

namespace gpipe::train {
namespace {

constexpr double kPi = 3.14159265358979323846;

bool ends(LearningRateSchedule schedule) {
  return schedule == LearningRateSchedule::kCosine || schedule == LearningRateSchedule::kLinear;
}

// What is left of the way from the peak to the final rate: 1 at the peak, 0 at the end, for `progress` from 0 to 1.
double remainder(LearningRateSchedule schedule, double progress) {
  return schedule == LearningRateSchedule::kCosine ? (1 + std::cos(kPi * progress)) / 2 : 1 - progress;
}

}  // namespace

const std::vector<std::string>& learning_rate_schedule_names() {
  static const std::vector<std::string> names = {"constant", "inverse-sqrt", "cosine", "linear"};
  return names;
}

const char* name(LearningRateSchedule schedule) {
  return learning_rate_schedule_names()[static_cast<std::size_t>(schedule)].c_str();
}

LearningRateSchedule parse_learning_rate_schedule(std::string_view word) {
  return static_cast<LearningRateSchedule>(cli::parse_choice(word, learning_rate_schedule_names()));
}

void LearningRate::check() const {
  if (!std::isfinite(peak) || peak <= 0) {
    throw InvalidArgument(fmt::format("learning rate: the peak is {}; expected a number above 0", peak));
  }
  if (warmup_steps < 0 || total_steps < 0) {
    throw InvalidArgument(fmt::format("learning rate: {} is {}; expected 0 or more steps",
                                      warmup_steps < 0 ? "warmup_steps" : "total_steps",
                                      std::min(warmup_steps, total_steps)));
  }
  if (!(final_fraction >= 0 && final_fraction <= 1)) {
    throw InvalidArgument(
        fmt::format("learning rate: final_fraction is {}; expected a number from 0 to 1", final_fraction));
  }
  if (!ends(schedule)) return;
  if (total_steps == 0) {
    throw InvalidArgument(fmt::format(
        "learning rate: the schedule '{}' has to know the number of steps of the training; set total_steps, "
        "or use 'constant' or 'inverse-sqrt'",
        name(schedule)));
  }
  if (warmup_steps > total_steps) {
    throw InvalidArgument(fmt::format("learning rate: a warm-up of {} steps does not fit a training of {}; shorten it",
                                      warmup_steps, total_steps));
  }
}

std::string LearningRate::to_json() const {
  return fmt::format(R"({{"schedule": "{}", "peak": {}, "warmup_steps": {}, "total_steps": {}, "final_fraction": {}}})",
                     name(schedule), peak, warmup_steps, ends(schedule) ? total_steps : 0,
                     ends(schedule) ? final_fraction : 0);
}

std::string LearningRate::in_words() const {
  const char* const step = warmup_steps == 1 ? "step" : "steps";
  if (ends(schedule)) {
    return fmt::format("{} from {:g} to {:g} in {} steps{}", name(schedule), peak, final_fraction * peak, total_steps,
                       warmup_steps == 0 ? "" : fmt::format(", {} of them warm-up", warmup_steps));
  }
  const std::string course = schedule == LearningRateSchedule::kConstant
                                 ? fmt::format("constant at {:g}", peak)
                                 : fmt::format("{} from {:g}", name(schedule), peak);
  return warmup_steps == 0 ? course : fmt::format("{} after {} {} of warm-up", course, warmup_steps, step);
}

std::string learning_rate_in_words(const std::string& json) {
  try {
    const auto fields = nlohmann::json::parse(json);
    LearningRate rate;
    rate.schedule = parse_learning_rate_schedule(fields.at("schedule").get<std::string>());
    rate.peak = fields.at("peak").get<double>();
    rate.warmup_steps = fields.at("warmup_steps").get<std::int64_t>();
    rate.total_steps = fields.at("total_steps").get<std::int64_t>();
    rate.final_fraction = fields.at("final_fraction").get<double>();
    return rate.in_words();
  } catch (const nlohmann::json::exception&) {
    return json;
  } catch (const InvalidArgument&) {
    return json;
  }
}

double LearningRate::at(std::int64_t step) const {
  check();
  if (step < 0) throw InvalidArgument(fmt::format("learning rate: step {} is below 0", step));
  const auto number = static_cast<double>(step) + 1;
  const auto warmup = static_cast<double>(warmup_steps);
  if (number < warmup) return peak * (number / warmup);
  if (schedule == LearningRateSchedule::kConstant) return peak;
  if (schedule == LearningRateSchedule::kInverseSqrt) return peak * std::sqrt(std::max(warmup, 1.0) / number);
  const double peak_step = std::max(warmup - 1, 0.0);
  const double progress =
      std::min((static_cast<double>(step) - peak_step) / (static_cast<double>(total_steps) - peak_step), 1.0);
  return peak * (final_fraction + (1 - final_fraction) * remainder(schedule, progress));
}

}  // namespace gpipe::train
