#include "cli/wrap.h"

#include <gtest/gtest.h>

namespace gpipe::cli {
namespace {

TEST(Wrap, BreaksLinesBetweenWordsAndIndentsThem) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one  two\nthree", 7, 2), "one two\n  three");
  EXPECT_EQ(wrapped("a longestword b", 4), "a\nlongestword\nb");
}

TEST(Wrap, ShortensAtTheFrontBetweenLetters) {
  EXPECT_EQ(shortened("encoder.layer", 7), "..layer");
  EXPECT_EQ(shortened("layer", 7), "layer");
  EXPECT_EQ(shortened("aéb", 3), "..b");
}

}  // namespace
}  // namespace gpipe::cli
