#include "train/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TrainingSummary, HasTheFactsAndATableOfTheStages) {
  TrainingSummary summary;
  summary.ended = "done";
  summary.num_steps = 938;
  summary.seconds = 112;
  summary.num_items = 60000;
  summary.loss = 0.25;
  summary.bubble_fraction = 0.125;
  summary.results = {{"test accuracy", "89.1 %"}};
  summary.files = {{"weights", "model.pt"}};
  summary.stages = {{"0-6", 12345, 0.912, 120 << 20}, {"7", 5, 0.5, 64 << 20}};
  EXPECT_EQ(to_text(summary),
            "ended          done\n"
            "steps          938 in 1:52, 8.38 a second\n"
            "samples        60000, 536 a second\n"
            "loss           0.2500\n"
            "test accuracy  89.1 %\n"
            "bubble         12.5 %\n"
            "weights        model.pt\n"
            "\n"
            "stage  layers  parameters    busy     peak\n"
            "    0  0-6          12345  91.2 %  120 MiB\n"
            "    1  7                5  50.0 %   64 MiB\n");
}

TEST(TrainingSummary, LeavesOutWhatATrainingThatDidNothingDoesNotHave) {
  TrainingSummary summary;
  summary.ended = "interrupted";
  EXPECT_EQ(to_text(summary), "ended  interrupted\nsteps  0 in 0:00\n");
}

TEST(TrainingSummary, MakesControlCharactersVisible) {
  TrainingSummary summary;
  summary.files = {{"weights", "\x1b[31m.pt"}};
  EXPECT_THAT(to_text(summary), HasSubstr("\\x1b[31m.pt"));
  EXPECT_THAT(to_text(summary), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace gpipe::train
