#include <gtest/gtest.h>

#include "gpipe/text/layout.h"

namespace gpipe {
namespace {

using detail::Align;
using detail::to_table;

TEST(Table, AlignsLettersAndLeavesOutColumnsWithoutText) {
  EXPECT_EQ(to_table({{"name", Align::kLeft}, {"none"}, {"n"}}, {{"é", "", "1"}, {"layer", "", "10"}}),
            "name    n\n"
            "é       1\n"
            "layer  10\n");
}

}  // namespace
}  // namespace gpipe
