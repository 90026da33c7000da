#include "gpipe/text/crc32.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

using detail::crc32;

TEST(Crc32, OfKnownBytesIsKnown) {
  EXPECT_EQ(crc32(""), 0u);
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
}

}  // namespace
}  // namespace gpipe
