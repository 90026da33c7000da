#include "gpipe/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe {
namespace {

using detail::find_invalid_utf8;
using detail::normalized_space;
using detail::num_characters;
using detail::repaired_utf8;
using detail::utf8_character;
using detail::whitespace_bytes;
using detail::without_trailing_whitespace;

TEST(Utf8, FindsWhereTextStopsBeingUtf8) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("aé犬😀\u07ff\uabcd\ue000\U0010ffff"), std::string_view::npos);
  for (const char* bytes : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xc3",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xe2\x82x", "\xf0\x9f\x98"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("é") + bytes), 2u) << bytes;
  }
}

TEST(Utf8, EveryCodePointIsReadFromItsBytes) {
  for (const auto& [text, code_point] : {std::pair<std::string, std::uint32_t>{"a", 'a'},
                                         {"\u07ff", 0x7ff},
                                         {"\uabcd", 0xabcd},
                                         {"\U0010ffff", 0x10ffff}}) {
    EXPECT_EQ(utf8_character("x" + text, 1).code_point, code_point);
    EXPECT_EQ(utf8_character("x" + text, 1).num_bytes, text.size());
  }
  EXPECT_EQ(utf8_character("\xff", 0).num_bytes, 0u);
  EXPECT_EQ(num_characters("aé犬😀"), 4u);
}

TEST(Utf8, RepairReplacesEveryByteThatBelongsToNoCharacter) {
  std::size_t num_replaced = 0;
  EXPECT_EQ(repaired_utf8("a\xff\xfe\xc3\xa4", &num_replaced), "a\xef\xbf\xbd\xef\xbf\xbd\xc3\xa4");
  EXPECT_EQ(num_replaced, 2U);
}

TEST(Utf8, WhitespaceIsThatOfPython) {
  for (const char* blank :
       {" ", "\t", "\x1f", "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028", "\u202f", "\u205f", "\u3000"}) {
    EXPECT_EQ(whitespace_bytes(std::string("a") + blank, 1), std::string(blank).size());
    EXPECT_EQ(without_trailing_whitespace(std::string("a") + blank + blank), "a");
  }
  for (const char* letter : {"a", "\x01", "\x7f", "\u200b", "\xc2", "\xe3\x80"}) {
    EXPECT_EQ(whitespace_bytes(letter, 0), 0u);
    EXPECT_EQ(without_trailing_whitespace(letter), letter);
  }
}

TEST(Utf8, NormalizedSpaceHasOneBlankBetweenWordsAndNoControls) {
  EXPECT_EQ(normalized_space("\t a\u3000\nb\x01 c\u0080\u00a0"), "a b c");
  EXPECT_EQ(normalized_space(" \n"), "");
}

}  // namespace
}  // namespace gpipe
