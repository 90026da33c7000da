#include "gpipe/text/nearest_name.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <string>
#include <vector>

namespace gpipe {
namespace {

using detail::nearest_name;

const std::vector<std::string> kSchedules = {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1",
                                             "zb-h2", "zb-v", "v-half",      "v-min",      "forward"};

TEST(NearestName, FindsANameWithAMissingLetter) { EXPECT_EQ(nearest_name("gpip", kSchedules), "gpipe"); }

TEST(NearestName, FindsANameWithAnExtraLetter) { EXPECT_EQ(nearest_name("interleavedd", kSchedules), "interleaved"); }

TEST(NearestName, FindsANameWithAReplacedLetter) { EXPECT_EQ(nearest_name("loopet-bfs", kSchedules), "looped-bfs"); }

TEST(NearestName, CountsSwappedNeighboursAsOneEdit) {
  EXPECT_EQ(nearest_name("fbrward", {"forward"}), "forward");  // one replaced
  EXPECT_EQ(nearest_name("1fb1", kSchedules), "1f1b");         // one swap; two replacements would be too many of four
}

TEST(NearestName, IgnoresCase) { EXPECT_EQ(nearest_name("ZB-V", kSchedules), "zb-v"); }

TEST(NearestName, PrefersTheNearerOfTwo) {
  EXPECT_EQ(nearest_name("zb-h2x", kSchedules), "zb-h2");
  EXPECT_EQ(nearest_name("stages", {"stage", "stages"}), "stages");
}

TEST(NearestName, TakesTheFirstOfSeveralEquallyNear) { EXPECT_EQ(nearest_name("zb-h", kSchedules), "zb-h1"); }

TEST(NearestName, IsEmptyWhenMoreThanAThirdOfTheLettersWouldChange) {
  EXPECT_EQ(nearest_name("gp", kSchedules), "");
  EXPECT_EQ(nearest_name("abcxyz", {"abcdef"}), "");        // three of six
  EXPECT_EQ(nearest_name("abcdxy", {"abcdef"}), "abcdef");  // two of six
  EXPECT_EQ(nearest_name("x", {"y"}), "");
}

TEST(NearestName, IsEmptyForAnEmptyNameOrNoCandidates) {
  EXPECT_EQ(nearest_name("", kSchedules), "");
  EXPECT_EQ(nearest_name("gpipe", {}), "");
}

TEST(NearestName, TakesBytesThatAreNotText) {
  EXPECT_EQ(nearest_name(std::string("g\xff\x00pe", 5), kSchedules), "");
  EXPECT_EQ(nearest_name("gp\xffpe", kSchedules), "gpipe");
}

TEST(NearestName, DoesNotLookAtTheBytesOfAHugeName) {
  constexpr std::size_t kSize = 64 << 20;
  void* const unreadable = mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  EXPECT_EQ(nearest_name({static_cast<const char*>(unreadable), kSize}, kSchedules), "");
  munmap(unreadable, kSize);
}

}  // namespace
}  // namespace gpipe
