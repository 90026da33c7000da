#include "train/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "gpipe/error.h"

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;

LearningRate rate(LearningRateSchedule schedule, std::int64_t warmup, std::int64_t total, double final_fraction = 0) {
  LearningRate made;
  made.schedule = schedule;
  made.peak = 2;
  made.warmup_steps = warmup;
  made.total_steps = total;
  made.final_fraction = final_fraction;
  return made;
}

std::string refusal(const LearningRate& rate, std::int64_t step = 0) {
  try {
    rate.at(step);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "not refused";
}

constexpr LearningRateSchedule kAll[] = {LearningRateSchedule::kConstant, LearningRateSchedule::kInverseSqrt,
                                         LearningRateSchedule::kCosine, LearningRateSchedule::kLinear};

TEST(LearningRate, RisesInEqualStepsToThePeak) {
  for (const LearningRateSchedule schedule : kAll) {
    const LearningRate warming = rate(schedule, 4, 100);
    EXPECT_DOUBLE_EQ(warming.at(0), 0.5) << name(schedule);
    EXPECT_DOUBLE_EQ(warming.at(1), 1.0) << name(schedule);
    EXPECT_DOUBLE_EQ(warming.at(2), 1.5) << name(schedule);
    EXPECT_DOUBLE_EQ(warming.at(3), 2.0) << name(schedule);
  }
}

TEST(LearningRate, BeginsAtThePeakWithoutAWarmUp) {
  for (const LearningRateSchedule schedule : kAll) EXPECT_DOUBLE_EQ(rate(schedule, 0, 10).at(0), 2) << name(schedule);
}

TEST(LearningRate, ConstantStaysAtThePeak) {
  EXPECT_EQ(rate(LearningRateSchedule::kConstant, 0, 0).at(std::numeric_limits<std::int64_t>::max()), 2);
}

TEST(LearningRate, InverseSqrtHalvesWhenStepsAreFourfold) {
  const LearningRate falling = rate(LearningRateSchedule::kInverseSqrt, 10, 0);
  EXPECT_DOUBLE_EQ(falling.at(9), 2);
  EXPECT_DOUBLE_EQ(falling.at(39), 1);
  EXPECT_DOUBLE_EQ(falling.at(159), 0.5);
}

TEST(LearningRate, LinearAndCosineAreHalfWayInTheMiddleAndFinalAtTheEnd) {
  for (const LearningRateSchedule schedule : {LearningRateSchedule::kCosine, LearningRateSchedule::kLinear}) {
    const LearningRate ending = rate(schedule, 0, 100, 0.1);
    EXPECT_DOUBLE_EQ(ending.at(50), 1.1) << name(schedule);
    EXPECT_DOUBLE_EQ(ending.at(100), 0.2) << name(schedule);
    EXPECT_DOUBLE_EQ(ending.at(1000), 0.2) << name(schedule);
    EXPECT_GT(ending.at(99), 0.2) << name(schedule);
    for (std::int64_t step = 1; step <= 100; ++step) EXPECT_LT(ending.at(step), ending.at(step - 1)) << step;
  }
  EXPECT_DOUBLE_EQ(rate(LearningRateSchedule::kLinear, 0, 100).at(25), 1.5);
  EXPECT_DOUBLE_EQ(rate(LearningRateSchedule::kCosine, 0, 100).at(25), 1 + std::sqrt(0.5));
}

TEST(LearningRate, AWarmUpMayTakeTheWholeTraining) {
  EXPECT_DOUBLE_EQ(rate(LearningRateSchedule::kCosine, 10, 10).at(9), 2);
}

TEST(LearningRate, ComesBackFromItsName) {
  for (const LearningRateSchedule schedule : kAll) EXPECT_EQ(parse_learning_rate_schedule(name(schedule)), schedule);
  try {
    parse_learning_rate_schedule("cosin");
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'cosine'?"));
    EXPECT_THAT(error.what(), HasSubstr("constant, inverse-sqrt, cosine, linear"));
  }
}

TEST(LearningRate, RefusesWhatMakesNoSense) {
  LearningRate wrong;
  wrong.peak = 0;
  EXPECT_THAT(refusal(wrong), HasSubstr("the peak is 0"));
  wrong.peak = std::nan("");
  EXPECT_THAT(refusal(wrong), HasSubstr("the peak is nan"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kConstant, -1, 0)), HasSubstr("warmup_steps is -1"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kConstant, 0, -3)), HasSubstr("total_steps is -3"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kCosine, 0, 0)),
              HasSubstr("'cosine' has to know the number of steps"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kLinear, 11, 10)), HasSubstr("a warm-up of 11 steps"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kLinear, 0, 10, 1.5)), HasSubstr("final_fraction is 1.5"));
  EXPECT_THAT(refusal(rate(LearningRateSchedule::kConstant, 0, 0), -1), HasSubstr("step -1 is below 0"));
}

TEST(LearningRate, IsTheSameTextForTheSameCourse) {
  LearningRate rate{LearningRateSchedule::kConstant, 0.1, 5, 100, 0.5};
  EXPECT_EQ(rate.to_json(),
            R"({"schedule": "constant", "peak": 0.1, "warmup_steps": 5, "total_steps": 0, "final_fraction": 0})");
  const std::string constant = rate.to_json();
  rate.total_steps = 200;
  EXPECT_EQ(rate.to_json(), constant);
  rate.schedule = LearningRateSchedule::kCosine;
  EXPECT_EQ(rate.to_json(),
            R"({"schedule": "cosine", "peak": 0.1, "warmup_steps": 5, "total_steps": 200, "final_fraction": 0.5})");
}

TEST(LearningRate, SpeaksInWords) {
  LearningRate rate = {LearningRateSchedule::kCosine, 3e-3, 50, 2000, 0.1};
  EXPECT_EQ(rate.in_words(), "cosine from 0.003 to 0.0003 in 2000 steps, 50 of them warm-up");
  EXPECT_EQ(learning_rate_in_words(rate.to_json()), rate.in_words());
  rate = {LearningRateSchedule::kLinear, 1e-3, 0, 8, 0};
  EXPECT_EQ(rate.in_words(), "linear from 0.001 to 0 in 8 steps");
  rate = {LearningRateSchedule::kConstant, 1e-3, 0, 0, 0};
  EXPECT_EQ(rate.in_words(), "constant at 0.001");
  rate = {LearningRateSchedule::kInverseSqrt, 2e-3, 400, 0, 0};
  EXPECT_EQ(rate.in_words(), "inverse-sqrt from 0.002 after 400 steps of warm-up");
  EXPECT_EQ(learning_rate_in_words(rate.to_json()), rate.in_words());
  for (const char* other : {"", "5", "{}", "a course of my own", R"({"schedule": "stairs"})"}) {
    EXPECT_EQ(learning_rate_in_words(other), other);
  }
}

}  // namespace
}  // namespace gpipe::train
