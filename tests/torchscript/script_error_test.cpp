#include "gpipe/torchscript/script_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::detail {
namespace {

TEST(ScriptError, IsTheOperationItsPlaceAndWhatWasWrong) {
  EXPECT_EQ(
      script_error("The following operation failed in the TorchScript interpreter.\n"
                   "Traceback of TorchScript, serialized code (most recent call last):\n"
                   "  File \"code/__torch__.py\", line 12, in forward\n"
                   "    x: Tensor) -> Tensor:\n"
                   "    first = self.first\n"
                   "    y = torch.linear(x, first.weight)\n"
                   "        ~~~~~~~~~~~~ <--- HERE\n"
                   "    return y\n"
                   "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"),
      "y = torch.linear(x, first.weight) (code/__torch__.py, line 12): mat1 and mat2 shapes cannot be multiplied (2x3 "
      "and 4x5)");
}

TEST(ScriptError, TakesTheInnermostOfSeveralPlaces) {
  EXPECT_EQ(script_error("Traceback of TorchScript (most recent call last):\n"
                         "  File \"a.py\", line 1, in forward\n"
                         "    return self.b(x)\n"
                         "           ~~~~~~ <--- HERE\n"
                         "  File \"b.py\", line 7, in forward\n"
                         "    assert x > 0\n"
                         "    ~~~~~~~~~~~~ <--- HERE\n"
                         "AssertionError: x is\n negative\n"),
            "assert x > 0 (b.py, line 7): x is negative");
}

TEST(ScriptError, OfAPlainTextIsItsLines) {
  EXPECT_EQ(script_error("one\n  two\n\nthree"), "one two three");
  EXPECT_EQ(script_error("first\nException raised from f at g.cpp:1\nframe #0"), "first");
  EXPECT_EQ(script_error(""), "");
}

}  // namespace
}  // namespace gpipe::detail
