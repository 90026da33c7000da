// The learning rate of each step: a warm-up, then one of four courses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::train {

enum class LearningRateSchedule { kConstant, kInverseSqrt, kCosine, kLinear };

// "constant", "inverse-sqrt", "cosine", "linear".
const char* name(LearningRateSchedule schedule);
const std::vector<std::string>& learning_rate_schedule_names();

// Throws InvalidArgument for any other word, naming the nearest one.
LearningRateSchedule parse_learning_rate_schedule(std::string_view word);

//   rate
//   peak |    _____________  constant
//        |   /\ ' - .
//        |  /  \      ' - .  inverse-sqrt: peak * sqrt(warmup_steps / (step + 1))
//        | /    ' .
//        |/         ' - . _  cosine or linear: final_fraction * peak at step total_steps
//        +---|------------|- step
//       warmup_steps  total_steps
struct LearningRate {
  LearningRateSchedule schedule = LearningRateSchedule::kConstant;
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;  // the rate rises from peak / warmup_steps to peak, which step warmup_steps - 1 has
  std::int64_t total_steps = 0;   // of the training; only cosine and linear need it
  double final_fraction = 0;      // of the peak; only cosine and linear end there

  // The rate of step `step`, counted from zero. Depends on nothing else, so that a resumed training goes on with the
  // same rates. Steps from total_steps on have the final rate. Throws InvalidArgument for a step below zero and as
  // check().
  double at(std::int64_t step) const;

  // {"schedule": "cosine", "peak": 0.003, ...}: for a checkpoint, to see whether a resumed training follows the same
  // course. What the schedule does not need is 0.
  std::string to_json() const;

  // "cosine from 0.003 to 0.0003 in 2000 steps, 50 of them warm-up": for people.
  std::string in_words() const;

  // Throws InvalidArgument that names the field: a peak that is not above zero, a count below zero, a fraction outside
  // 0 to 1, a cosine or linear course without total_steps or with a warm-up longer than them.
  void check() const;
};

// What to_json has written, in words; the text itself if it is something else.
std::string learning_rate_in_words(const std::string& json);

}  // namespace gpipe::train
