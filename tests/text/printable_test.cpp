// Text of unknown origin moves no cursor and turns no line around.
#include "gpipe/text/printable.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace gpipe {
namespace {

using detail::printable;

TEST(Printable, MakesControlCharactersVisible) {
  EXPECT_EQ(printable("a\x1b[31mb\n"), "a\\x1b[31mb\n");
  EXPECT_EQ(printable(std::string("\0\t\x7f", 3)), "\\x00\\x09\\u007f");
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
}

TEST(Printable, MakesWhatTurnsTheDirectionOfWritingVisible) {
  for (const char* mark : {"\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069",
                           "\u200e", "\u200f", "\u061c"}) {
    EXPECT_EQ(printable(mark).substr(0, 2), "\\u") << printable(mark);
  }
  EXPECT_EQ(printable("weight\u202egnp.exe"), "weight\\u202egnp.exe");
}

TEST(Printable, MakesWhatIsNotSeenVisible) {
  EXPECT_EQ(printable("a\u200bb\u00adc\ufeffd"), "a\\u200bb\\u00adc\\ufeffd");
  EXPECT_EQ(printable("\U000e0041"), "\\udb40\\udc41");
  EXPECT_EQ(printable("\u05d0\u0627\u4e2d\U0001f600"), "\u05d0\u0627\u4e2d\U0001f600");
}

TEST(Printable, MakesBytesThatAreNotUtf8Visible) {
  EXPECT_EQ(printable("a\xff\x9b\xc3"), "a\\xff\\x9b\\xc3");
  EXPECT_EQ(printable("\xe2\x80"), "\\xe2\\x80");
}

TEST(Printable, LeavesTheMeaningOfJson) {
  const nlohmann::json json = {{"\u202e\u200b", "\x1b \x7f \U000e0001 \u00e9"}};
  const std::string shown = printable(json.dump(2));
  EXPECT_EQ(nlohmann::json::parse(shown), json);
  EXPECT_EQ(shown.find("\u202e"), std::string::npos);
}

}  // namespace
}  // namespace gpipe
