#include <gtest/gtest.h>

#include "gpipe/text/printable.h"

namespace gpipe {
namespace {

using detail::quoted_name;

TEST(QuotedName, IsShortAndMovesNoCursor) {
  EXPECT_EQ(quoted_name("layer \"0\""), "\"layer \\\"0\\\"\"");
  EXPECT_EQ(quoted_name("\x1b[31m\xff\u202e"), "\"\\u001b[31m\\u202e\"");
  EXPECT_EQ(quoted_name(std::string(200, 'x')), '"' + std::string(100, 'x') + "\"...");
  EXPECT_EQ(quoted_name("abcdef", 3), "\"abc\"...");
}

}  // namespace
}  // namespace gpipe
