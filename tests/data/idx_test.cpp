// IDX arrays: the values of good ones, and the byte at which a bad one is wrong.
#include "data/idx.h"

#include <gmock/gmock.h>

#include "tests/data/files.h"
#include "tests/data/idx_bytes.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string idx_refusal(const std::string& bytes, int num_dims) {
  return refusal([&] { parse_idx(bytes, num_dims, "images"); });
}

TEST(Idx, HasItsDimensionsAndValues) {
  const IdxArray array = parse_idx(idx_bytes({2, 1, 3}, {1, 2, 3, 4, 5, 255}), 3, "images");
  EXPECT_THAT(array.dims, ElementsAre(2, 1, 3));
  EXPECT_THAT(array.values, ElementsAre(1, 2, 3, 4, 5, 255));
}

TEST(Idx, IsReadFromPlainAndGzipFiles) {
  const TemporaryFolder folder;
  const std::string bytes = idx_bytes({3}, {7, 8, 9});
  EXPECT_THAT(read_idx(folder.write("labels", bytes), 1).values, ElementsAre(7, 8, 9));
  EXPECT_THAT(read_idx(folder.write("labels.gz", gzipped(bytes)), 1).values, ElementsAre(7, 8, 9));
}

TEST(Idx, RefusesAWrongMagicNumber) {
  std::string bytes = idx_bytes({1}, {7});
  bytes[2] = 0x0d;  // floats
  EXPECT_THAT(idx_refusal(bytes, 1), AllOf(HasSubstr("images: wrong magic number 0x00000d01 at byte 0"),
                                           HasSubstr("expected 0x00000801"), HasSubstr("; check")));
  EXPECT_THAT(idx_refusal(idx_bytes({1}, {7}), 3), HasSubstr("expected 0x00000803"));
  EXPECT_THAT(idx_refusal("<html>404 not found", 1), HasSubstr("wrong magic number 0x3c68746d"));
}

TEST(Idx, RefusesWhatIsCutOffOrTooLong) {
  const std::string bytes = idx_bytes({2, 1, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(idx_refusal("", 3), HasSubstr("too short"));
  EXPECT_THAT(idx_refusal(bytes.substr(0, 3), 3), HasSubstr("too short for IDX: 3 bytes"));
  EXPECT_THAT(idx_refusal(bytes.substr(0, 15), 3),
              HasSubstr("cut off in the dimensions: 15 bytes, expected at least 16"));
  EXPECT_THAT(idx_refusal(bytes.substr(0, 21), 3), HasSubstr("5 bytes of values from byte 16 on, expected 2 x 1 x 3"));
  EXPECT_THAT(idx_refusal(bytes + "x", 3), HasSubstr("7 bytes of values"));
  EXPECT_THAT(idx_refusal(bytes.substr(0, 16), 3), HasSubstr("0 bytes of values"));
}

TEST(Idx, RefusesHostileDimensions) {
  EXPECT_THAT(idx_refusal(idx_bytes({0x80000000, 28, 28}, {1}), 3), HasSubstr("expected 2147483648 x 28 x 28"));
  // The product is 0 modulo 2^64.
  EXPECT_THAT(idx_refusal(idx_bytes({0x80000000, 0x80000000, 4}, {}), 3), HasSubstr("2147483648 x 2147483648 x 4"));
  EXPECT_THAT(idx_refusal(idx_bytes({0xffffffff, 0xffffffff, 0xffffffff}, {1}), 3), HasSubstr("4294967295"));
  EXPECT_THAT(idx_refusal(idx_bytes({0, 28, 28}, {}), 3), HasSubstr("dimension 0 at byte 4 is 0"));
  EXPECT_THAT(idx_refusal(idx_bytes({0x80000000, 0, 28}, {}), 3), HasSubstr("dimension 1 at byte 8 is 0"));
}

TEST(Idx, ArbitraryBytesAreReadOrRefusedAndNothingElse) {
  const std::string seed = idx_bytes({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  std::mt19937 random(1);
  int num_read = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = mutated(seed, random);
    try {
      const IdxArray array = parse_idx(bytes, 3, "images");
      EXPECT_EQ(array.dims[0] * array.dims[1] * array.dims[2], static_cast<std::int64_t>(array.values.size()));
      ++num_read;
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(num_read, 500);
  EXPECT_LT(num_read, 15000);
}

}  // namespace
}  // namespace gpipe::data
