// Tokens as sacreBLEU makes them, one rule a test.
#include "bleu/tokenize.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::bleu {
namespace {

using std::string_literals::operator""s;

std::string tokens(const std::string& segment) { return tokenize(segment, Tokenizer::k13a); }

TEST(Tokenize, SetsSymbolsApartButNotApostrophesOrHyphens) {
  EXPECT_EQ(tokens("(a/b)"), "( a / b )");
  EXPECT_EQ(tokens("Tom&Jerry: \"yes\"!"), "Tom & Jerry : \" yes \" !");
  EXPECT_EQ(tokens("a_b [x] {y} ~^`|\\"), "a _ b [ x ] { y } ~ ^ ` | \\");
  EXPECT_EQ(tokens("don't well-known"), "don't well-known");
}

TEST(Tokenize, KeepsPointsAndCommasWithinNumbersOnly) {
  EXPECT_EQ(tokens("It costs $1,234.56."), "It costs $ 1,234.56 .");
  EXPECT_EQ(tokens("a.b, c"), "a . b , c");
  EXPECT_EQ(tokens("x.5 5.x .5 5."), "x . 5 5 . x . 5 5 .");
}

// A letter that took part in one replacement takes part in no other of the same pass, as in a regular expression's.
TEST(Tokenize, TreatsPointsInARowAsOneAfterTheOther) {
  EXPECT_EQ(tokens("a..b"), "a . . b");
  EXPECT_EQ(tokens("1..2"), "1 . . 2");
  EXPECT_EQ(tokens("x,,1"), "x , ,1");
  EXPECT_EQ(tokens("5.-6"), "5 . -6");
}

TEST(Tokenize, SetsAHyphenApartBehindADigit) {
  EXPECT_EQ(tokens("10-15"), "10 - 15");
  EXPECT_EQ(tokens("a-1 1-a -1"), "a-1 1 - a -1");
}

TEST(Tokenize, UndoesTheEntitiesOfSgmlInTheirOrder) {
  EXPECT_EQ(tokens("&quot;a&quot; &lt;b&gt;"), "\" a \" < b >");
  EXPECT_EQ(tokens("&amp;lt;"), "<");
  EXPECT_EQ(tokens("&amp;amp;"), "& amp ;");
  EXPECT_EQ(tokens("&amp;quot;"), "& quot ;");
  EXPECT_EQ(tokens("&apos;"), "& apos ;");
}

TEST(Tokenize, DropsSkippedMarksAndJoinsHyphenatedLines) {
  EXPECT_EQ(tokens("a<skipped>b"), "ab");
  EXPECT_EQ(tokens("<skip<skipped>ped>"), "< skipped >");
  EXPECT_EQ(tokens("hyphen-\nated words\nhere"), "hyphenated words here");
  EXPECT_EQ(tokens("at the end-\n"), "at the end-");
}

TEST(Tokenize, LeavesPunctuationBeyondAsciiWithItsWord) {
  EXPECT_EQ(tokens("«ja» “no”… 犬。"), "«ja» “no”… 犬。");
  EXPECT_EQ(tokens("é.5 ٣.٤"), "é . 5 ٣ . ٤");  // no digits but 0 to 9
}

TEST(Tokenize, SplitsAtWhitespaceOfUnicode) {
  const std::string blanks[] = {"\t",     "\v",     "\f",     "\r",     " ",      "\x1c",   "\x1d",
                                "\x1e",   "\x1f",   "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a",
                                "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  for (const std::string& blank : blanks) {
    for (const Tokenizer tokenizer : {Tokenizer::k13a, Tokenizer::kNone, Tokenizer::kChar}) {
      EXPECT_EQ(tokenize(blank + "a" + blank + blank + "b" + blank, tokenizer), "a b");
      EXPECT_EQ(tokenize(blank, tokenizer), "");
    }
  }
  for (const std::string& letter : {"\u200b"s, "\ufeff"s, "\u180e"s, "\u2060"s, "\u200e"s, "\0"s, "\x7f"s}) {
    EXPECT_EQ(tokenize("a" + letter + "b", Tokenizer::kNone), "a" + letter + "b");
  }
}

TEST(Tokenize, NoneChangesNothingElse) {
  EXPECT_EQ(tokenize(" (a.b)  &quot; <skipped> ", Tokenizer::kNone), "(a.b) &quot; <skipped>");
}

TEST(Tokenize, CharSplitsCodePointsNotBytes) {
  EXPECT_EQ(tokenize("aé 犬😀", Tokenizer::kChar), "a é 犬 😀");
  EXPECT_EQ(tokenize("e\u0301", Tokenizer::kChar), "e \u0301");
  EXPECT_EQ(tokenize("&lt;", Tokenizer::kChar), "& l t ;");
}

TEST(Tokenize, PassesOnBytesThatAreNotUtf8) {
  EXPECT_EQ(tokenize("a\xff\xc3", Tokenizer::kChar), "a \xff \xc3");
  EXPECT_EQ(tokenize("a\xff.\xe2\x80", Tokenizer::k13a), "a\xff . \xe2\x80");
  EXPECT_EQ(tokenize("\x80\x80", Tokenizer::kNone), "\x80\x80");
}

TEST(Tokenize, NamesAreThoseOfSacreBleu) {
  EXPECT_STREQ(name(Tokenizer::k13a), "13a");
  EXPECT_STREQ(name(Tokenizer::kNone), "none");
  EXPECT_STREQ(name(Tokenizer::kChar), "char");
}

}  // namespace
}  // namespace gpipe::bleu
