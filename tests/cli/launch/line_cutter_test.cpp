#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cli/launch/rank_output.h"

namespace gpipe::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> cut(const std::vector<std::string>& pieces, std::size_t longest_bytes = 100) {
  std::vector<std::string> lines;
  LineCutter cutter(longest_bytes, [&](std::string_view line) { lines.emplace_back(line); });
  for (const std::string& piece : pieces) cutter.add(piece);
  cutter.finish();
  return lines;
}

TEST(LineCutter, JoinsThePiecesOfALine) {
  EXPECT_THAT(cut({"a\nb\n"}), ElementsAre("a", "b"));
  EXPECT_THAT(cut({"o", "n", "e\ntw", "o\n"}), ElementsAre("one", "two"));
  EXPECT_THAT(cut({"\n\n"}), ElementsAre("", ""));
  EXPECT_THAT(cut({}), IsEmpty());
}

TEST(LineCutter, TakesWhatIsLeftAtTheEndForALine) { EXPECT_THAT(cut({"a\nb"}), ElementsAre("a", "b")); }

TEST(LineCutter, CutsALineThatIsTooLong) {
  EXPECT_THAT(cut({"12345\n"}, 5), ElementsAre("12345"));
  EXPECT_THAT(cut({"123456\n"}, 5), ElementsAre("12345", "6"));
  EXPECT_THAT(cut({"12345", "67890", "1\n2"}, 5), ElementsAre("12345", "67890", "1", "2"));
}

TEST(LineCutter, CutsNoLetterInTwo) {
  EXPECT_THAT(cut({"aaa\u00e4b\n"}, 4), ElementsAre("aaa", "\u00e4b"));
  EXPECT_THAT(cut({"aa\u20ac\u20ac"}, 4), ElementsAre("aa", "\u20ac", "\u20ac"));
  EXPECT_THAT(cut({std::string(9, '\x80')}, 4), ElementsAre("\x80\x80\x80\x80", "\x80\x80\x80\x80", "\x80"));
}

TEST(LineCutter, LosesNoByteHoweverTheyArrive) {
  std::mt19937 random(3);
  const auto pick = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> pieces(1 + pick(5));
    std::string all;
    for (std::string& piece : pieces) {
      for (std::size_t count = pick(12); count > 0; --count) piece += "ab\n\xe2\x82\xac"[pick(5)];
      all += piece;
    }
    std::string joined;
    std::string without_ends;
    for (const std::string& line : cut(pieces, 4 + pick(4))) joined += line;
    for (const char letter : all) {
      if (letter != '\n') without_ends += letter;
    }
    ASSERT_EQ(joined, without_ends);
  }
}

}  // namespace
}  // namespace gpipe::cli
