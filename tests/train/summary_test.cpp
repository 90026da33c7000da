#include "train/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Summary, HasAFactALine) {
  const Facts facts = {{"ended", "done"},
                       {"steps", with_rate("938 in 1:52", 938, 112)},
                       {"samples", with_rate("60000", 60000, 112)},
                       {"test accuracy", "89.1 %"}};
  EXPECT_EQ(to_text(facts),
            "ended          done\n"
            "steps          938 in 1:52, 8.38 a second\n"
            "samples        60000, 536 a second\n"
            "test accuracy  89.1 %\n");
}

TEST(Summary, LeavesOutTheRateOfATrainingThatDidNothing) {
  EXPECT_EQ(to_text({{"ended", "interrupted"}, {"steps", with_rate("0 in 0:00", 0, 0)}}),
            "ended  interrupted\nsteps  0 in 0:00\n");
}

TEST(Summary, MakesControlCharactersVisible) {
  const std::string text = to_text({{"weights", "\x1b[31m.pt"}});
  EXPECT_THAT(text, HasSubstr("\\x1b[31m.pt"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace gpipe::train
