#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ProfileCommand, RefusesOptionsWithoutEffectAndInputsThatDoNotFit) {
  const Outcome flops = run_gpipe({"profile", "--model", "resnet18", "--flops", "1e12"});
  EXPECT_EQ(flops.exit_code, 2);
  EXPECT_THAT(flops.err, AllOf(HasSubstr("--flops counts on paper only"), HasSubstr("--on-paper")));
  const Outcome neighbours = run_gpipe({"profile", "--model", "resnet18", "--busy-neighbours", "1", "--on-paper"});
  EXPECT_EQ(neighbours.exit_code, 2);
  EXPECT_THAT(neighbours.err, HasSubstr("leave out --busy-neighbours or --on-paper"));
  const Outcome small = run_gpipe({"profile", "--model", "resnet18", "--image", "1", "--samples", "1"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, AllOf(HasSubstr("resnet18 does not run on what it was given, tensors of [1, 3, 1, 1]"),
                               HasSubstr("try another --image")));
}

TEST(ProfileCommand, MeasuresFixedSecondsOfSeveralSamplesUnlessItIsToldNotTo) {
  const auto has_fixed = [](const Arguments& options) {
    Arguments arguments = {"profile", "--model", "resnet-cifar:20", "--on-paper", "--json"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out.find("\"fixed_forward_seconds\"") != std::string::npos &&
           outcome.out.find("\"fixed_backward_seconds\"") != std::string::npos;
  };
  EXPECT_TRUE(has_fixed({"--samples", "2"}));
  EXPECT_FALSE(has_fixed({"--samples", "2", "--no-fixed"}));
  EXPECT_FALSE(has_fixed({"--samples", "1"}));
}

TEST(ProfileCommand, HasTheVocabularyThatTrainHas) {
  EXPECT_THAT(run_gpipe({"profile", "--help"}).out, HasSubstr("[as gpipe train: lm 4000, translate 8000]"));
  EXPECT_THAT(run_gpipe({"train", "lm", "--help"}).out, HasSubstr("Sub-words [4000]"));
  EXPECT_THAT(run_gpipe({"train", "translate", "--help"}).out, HasSubstr("Sub-words [8000]"));
}

TEST(ProfileCommand, RefusesMoreThreadsThanTheMachineCanHave) {
  for (const char* option : {"--threads", "--busy-neighbours"}) {
    const Outcome outcome = run_gpipe({"profile", "--model", "resnet20", "--samples", "1", option, "1000000"});
    EXPECT_EQ(outcome.exit_code, 2) << option;
    EXPECT_THAT(outcome.err,
                AllOf(HasSubstr(option), HasSubstr("1000000"), HasSubstr("threads that this machine can have")))
        << option;
  }
}

}  // namespace
}  // namespace gpipe::cli
