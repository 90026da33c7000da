#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launch/launch.h"

namespace gpipe::cli {
namespace {

using ::testing::MatchesRegex;

TEST(Secret, IsLongAndNeverTheSame) {
  EXPECT_THAT(make_secret(), MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(make_secret().size(), 64u);
  EXPECT_NE(make_secret(), make_secret());
}

}  // namespace
}  // namespace gpipe::cli
