#include "cli/quantity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "gpipe/error.h"

namespace gpipe::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Value>
std::string refusal(Value (*parse)(std::string_view), const std::string& word) {
  try {
    parse(word);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "taken";
}

TEST(Quantity, CountsAreWholeNumbersFromOne) {
  EXPECT_EQ(parse_count("1"), 1);
  EXPECT_EQ(parse_count("2147483647"), std::numeric_limits<int>::max());
  for (const char* word : {"", "0", "-3", "abc", "1e9", "1.5", "2147483648", "99999999999", " 4", "4 ", "+4", "0x10"}) {
    EXPECT_THAT(refusal(parse_count, word), HasSubstr("is not a whole number from 1 to 2147483647")) << word;
  }
}

TEST(Quantity, IndicesStartAtZero) {
  EXPECT_EQ(parse_index("0"), 0);
  EXPECT_THAT(refusal(parse_index, "-1"), HasSubstr("'-1' is not a whole number from 0"));
}

TEST(Quantity, SecondsAreFiniteAndNotNegative) {
  EXPECT_EQ(parse_seconds("0"), 0);
  EXPECT_EQ(parse_seconds("1.5e-3"), 0.0015);
  for (const char* word : {"", "-1", "nan", "inf", "1e999", "1s", "1,5"}) {
    EXPECT_THAT(refusal(parse_seconds, word), HasSubstr("is not a number of seconds")) << word;
  }
}

TEST(Quantity, SpeedsAreAboveZero) {
  EXPECT_EQ(parse_speed("0.5"), 0.5);
  for (const char* word : {"0", "-1", "nan", "fast"}) {
    EXPECT_THAT(refusal(parse_speed, word), HasSubstr("is not a number above 0")) << word;
  }
}

TEST(Quantity, BytesTakeDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("1000000"), 1000000);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("512MB"), 512000000);
  EXPECT_EQ(parse_bytes("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("1 KiB"), 1024);
  EXPECT_EQ(parse_bytes("1e9"), 1000000000);
  EXPECT_EQ(parse_bytes("3TB"), 3000000000000);
}

TEST(Quantity, BytesKeepEveryDigitOfALargeNumber) {
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993);
  EXPECT_EQ(parse_bytes("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
}

TEST(Quantity, BytesRefuseWhatIsNoSize) {
  for (const char* word : {"", "GiB", "abc", "nan", "infGiB", "1e999", "--2GiB", "1.2.3MB"}) {
    EXPECT_THAT(refusal(parse_bytes, word), HasSubstr("is not a size such as 2GiB")) << word;
  }
  EXPECT_THAT(refusal(parse_bytes, "-1"), HasSubstr("'-1' is below 0"));
  EXPECT_THAT(refusal(parse_bytes, "-2GiB"), HasSubstr("is below 0"));
  EXPECT_THAT(refusal(parse_bytes, "1.5"), HasSubstr("is not a whole number of bytes"));
  EXPECT_THAT(refusal(parse_bytes, "9223372036854775808"), HasSubstr("more bytes than 64 bits can count"));
  EXPECT_THAT(refusal(parse_bytes, "8388608TiB"), HasSubstr("more bytes than 64 bits can count"));
}

TEST(Quantity, AnUnknownUnitIsAnsweredWithTheNearestOne) {
  EXPECT_THAT(refusal(parse_bytes, "2gib"), HasSubstr("unknown unit 'gib' (did you mean 'GiB'?)"));
  EXPECT_THAT(refusal(parse_bytes, "2Gb"), HasSubstr("not bits"));
  EXPECT_THAT(refusal(parse_bytes, "2parsec"), HasSubstr("unknown unit 'parsec';"));
}

TEST(Quantity, AHugeWordIsQuotedInPart) { EXPECT_LT(refusal(parse_count, std::string(1 << 20, '9')).size(), 200u); }

TEST(Quantity, BandwidthsTakeBytesWithOrWithoutPerSecond) {
  EXPECT_EQ(parse_bytes_per_second("1000"), 1000);
  EXPECT_EQ(parse_bytes_per_second("10GB"), 1e10);
  EXPECT_EQ(parse_bytes_per_second("1GiB/s"), 1073741824.0);
  EXPECT_THAT(refusal(parse_bytes_per_second, "0"), HasSubstr("not above 0"));
  EXPECT_THAT(refusal(parse_bytes_per_second, "/s"), HasSubstr("is not a size"));
  EXPECT_THAT(refusal(parse_bytes_per_second, "1e400"), HasSubstr("is not a size"));
}

TEST(Quantity, ListsAreSeparatedByCommas) {
  EXPECT_THAT(parse_list("3,3,2", parse_count), ElementsAre(3, 3, 2));
  EXPECT_THAT(parse_list("0.5", parse_speed), ElementsAre(0.5));
  EXPECT_THROW(parse_list("", parse_count), InvalidArgument);
  EXPECT_THROW(parse_list("3,,2", parse_count), InvalidArgument);
  EXPECT_THROW(parse_list("3,2,", parse_count), InvalidArgument);
}

TEST(Quantity, PairsAreSeparatedByAColon) {
  EXPECT_EQ(parse_pair("0:3"), std::make_pair(0, 3));
  for (const char* word : {"", "3", ":", "0:", ":3", "0:1:2", "-1:2", "a:b"})
    EXPECT_NE(refusal(parse_pair, word), "taken");
}

TEST(Quantity, BytesAreShownInTheUnitThatSuitsThem) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes((std::int64_t{1} << 20) - 1), "1 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::max()), "8 EiB");
}

TEST(Quantity, SecondsAreShownInTheUnitThatSuitsThem) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(22), "22 s");
  EXPECT_EQ(format_seconds(123456), "123456 s");
  EXPECT_EQ(format_seconds(0.01234), "12.34 ms");
  EXPECT_EQ(format_seconds(0.0000025), "2.5 us");
  EXPECT_EQ(format_seconds(1e-12), "0.001 ns");
  EXPECT_EQ(format_seconds(0.0005, time_unit(2)), "0.0005");
}

}  // namespace
}  // namespace gpipe::cli
