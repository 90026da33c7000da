// Files as bytes: gzip is unpacked, and every way in which it can be broken is named.
#include "data/gzip.h"

#include <gmock/gmock.h>

#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string sample_text() {
  std::string text;
  for (int number = 0; number < 20000; ++number) text += std::to_string(number * number) + " ";
  return text;
}

std::string gunzip_refusal(const std::string& bytes, std::int64_t max_bytes = kMaxFileBytes) {
  return refusal([&] { gunzip(bytes, "a.gz", max_bytes); });
}

TEST(Gzip, UnpacksWhatWasPacked) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_bytes(folder.write("a.gz", gzipped(sample_text()))), sample_text());
  EXPECT_EQ(read_bytes(folder.write("name_says_nothing", gzipped("x"))), "x");
  // Far more than three times its size, so that the room grows.
  const std::string zeros(5000000, '\0');
  EXPECT_EQ(gunzip(gzipped(zeros), "a.gz"), zeros);
}

TEST(Gzip, UnpacksSeveralMembersOneAfterTheOther) {
  EXPECT_EQ(gunzip(gzipped("one ") + gzipped("") + gzipped("two"), "a.gz"), "one two");
}

TEST(Gzip, PassesPlainFilesThrough) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_bytes(folder.write("plain", sample_text())), sample_text());
  EXPECT_EQ(read_bytes(folder.write("short", "\x1f")), "\x1f");
}

TEST(Gzip, RefusesWhatIsCutOffWhereverItIs) {
  const std::string packed = gzipped("a text that is long enough to have a middle");
  for (std::size_t size = 1; size < packed.size(); ++size) {
    EXPECT_THAT(gunzip_refusal(packed.substr(0, size)), AllOf(StartsWith("a.gz: cut off"), HasSubstr("; fetch")));
  }
}

TEST(Gzip, RefusesCorruptData) {
  std::string packed = gzipped(sample_text());
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x10);
  EXPECT_THAT(gunzip_refusal(packed), StartsWith("a.gz: corrupt gzip data at byte "));
  std::string wrong_sum = gzipped("text");
  wrong_sum[wrong_sum.size() - 8] = static_cast<char>(wrong_sum[wrong_sum.size() - 8] ^ 1);
  EXPECT_THAT(gunzip_refusal(wrong_sum), HasSubstr("incorrect data check"));
  EXPECT_THAT(gunzip_refusal("no gzip at all"), HasSubstr("corrupt"));
}

TEST(Gzip, RefusesWhatFollowsItsEnd) {
  const std::string packed = gzipped("text");
  EXPECT_THAT(gunzip_refusal(packed + "garbage"),
              HasSubstr("7 bytes follow the end of the gzip data at byte " + std::to_string(packed.size())));
  EXPECT_THAT(gunzip_refusal(packed + std::string(1, '\0')), HasSubstr("1 bytes follow"));
}

TEST(Gzip, RefusesWhatIsEmpty) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { read_bytes(folder.write("nothing", "")); }), HasSubstr("nothing: empty"));
  EXPECT_THAT(refusal([&] { read_bytes(folder.write("nothing.gz", "")); }), HasSubstr("nothing.gz: empty"));
  EXPECT_THAT(gunzip_refusal(gzipped("")), HasSubstr("empty"));
}

TEST(Gzip, RefusesWhatIsTooLargeBeforeItFillsTheMemory) {
  const std::string packed = gzipped(std::string(10000000, 'x'));
  EXPECT_THAT(gunzip_refusal(packed, 9999999), HasSubstr("unpacks to more than 9999999 bytes"));
  EXPECT_EQ(gunzip(packed, "a.gz", 10000000).size(), 10000000U);
  const TemporaryFolder folder;
  const std::string plain = folder.write("plain", "12345");
  EXPECT_THAT(refusal([&] { read_bytes(plain, 4); }), HasSubstr("has more than 4 bytes"));
  EXPECT_EQ(read_bytes(plain, 5), "12345");
}

TEST(Gzip, RefusesAPlainFileThatIsNamedGzip) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { read_bytes(folder.write("page.gz", "<html>404")); }), HasSubstr("not gzip"));
}

TEST(Gzip, SaysWhyAFileCannotBeRead) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal([&] { read_bytes(folder.path("none")); }), HasSubstr("No such file"));
  EXPECT_THAT(refusal([&] { read_bytes(folder.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(refusal([&] { read_bytes(folder.path("a\nb")); }), HasSubstr("a?b: "));
}

TEST(Gzip, ArbitraryBytesAreUnpackedOrRefusedAndNothingElse) {
  const std::string seeds[] = {gzipped("a short text"), gzipped(sample_text().substr(0, 3000)),
                               gzipped("one") + gzipped("two")};
  std::mt19937 random(1);
  int num_unpacked = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = mutated(seeds[round % 3], random);
    num_unpacked += refusal([&] { gunzip(bytes, "a.gz", 100000); }) == "not refused" ? 1 : 0;
  }
  EXPECT_LT(num_unpacked, 1000);  // the check sum sees to that; but time and name in the header may be anything
}

}  // namespace
}  // namespace gpipe::data
