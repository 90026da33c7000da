#include <gtest/gtest.h>

#include "gpipe/text/layout.h"

namespace gpipe {
namespace {

TEST(Table, AlignsLettersAndLeavesOutColumnsWithoutText) {
  EXPECT_EQ(to_table({{"name", Align::kLeft}, {"none"}, {"n"}}, {{"é", "", "1"}, {"layer", "", "10"}}),
            "name    n\n"
            "é       1\n"
            "layer  10\n");
}

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
}  // namespace gpipe
