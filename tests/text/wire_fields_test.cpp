// Named lists as bytes: they come back bit for bit, in one form only, and bytes of unknown origin do no harm.
#include "gpipe/text/wire_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "gpipe/error.h"
#include "tests/checkpoint_files/largest_allocation.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

std::vector<WireField> some_fields() {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  return {{"name", Texts{"train_step"}},
          {"texts", Texts{"", std::string("a\0b", 3), "\xff\n", "text"}},
          {"step", Integers{7}},
          {"integers", Integers{kLeast, -1, 0, 1, kMost}},
          {"numbers", Numbers{0.1, -0.0, std::nan("7"), -std::numeric_limits<double>::infinity(), 5e-324}},
          {"losses", TensorCount{1}},
          {"norms", TensorCount{3}},
          {"no texts", Texts()},
          {"no integers", Integers()},
          {"no numbers", Numbers()},
          {"no tensors", TensorCount()}};
}

TEST(WireFields, ComeBackBitForBit) {
  const std::vector<WireField> fields = some_fields();
  const std::vector<WireField> again = decode_fields(encode_fields(fields));
  ASSERT_EQ(again.size(), fields.size());
  for (std::size_t index = 0; index < fields.size(); ++index) {
    EXPECT_EQ(again[index].name, fields[index].name);
    ASSERT_EQ(again[index].values.index(), fields[index].values.index());
  }
  EXPECT_EQ(std::get<Texts>(again[1].values), std::get<Texts>(fields[1].values));
  EXPECT_EQ(std::get<Integers>(again[3].values), std::get<Integers>(fields[3].values));
  const auto& numbers = std::get<Numbers>(again[4].values);
  const auto& sent = std::get<Numbers>(fields[4].values);
  ASSERT_EQ(numbers.size(), sent.size());
  EXPECT_EQ(std::memcmp(numbers.data(), sent.data(), sent.size() * sizeof(double)), 0);
  EXPECT_EQ(num_tensors(again), 4U);
  EXPECT_EQ(encode_fields(again), encode_fields(fields));
  EXPECT_TRUE(decode_fields("").empty());
}

TEST(WireFields, HaveTheLayoutThatTheDocumentsSay) {
  using namespace std::string_literals;
  EXPECT_EQ(encode_fields({{"t", Texts{"ab"}}}), "\x01t\x00\x01\0\0\0\x02\0\0\0"s + "ab"s);
  EXPECT_EQ(encode_fields({{"i", Integers{-2}}}), "\x01i\x01\x01\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"s);
  EXPECT_EQ(encode_fields({{"d", Numbers{1}}}), "\x01"s + "d\x02\x01\0\0\0\0\0\0\0\0\0\xf0\x3f"s);
  EXPECT_EQ(encode_fields({{"tensors", TensorCount{258}}}), "\x07tensors\x03\x02\x01\0\0"s);
}

TEST(WireFields, OfBytesThatAreNoneAreRefused) {
  using namespace std::string_literals;
  const std::string sound = encode_fields(some_fields());
  const std::vector<std::pair<std::string, const char*>> malformed = {
      {"\0"s, "ends too early"},
      {"\0\0\0\0\0\0"s, "too short or too long"},
      {"\x02t"s, "ends too early"},
      {"\x01t"s, "ends too early"},
      {"\x01t\x04\0\0\0\0"s, "there is no kind 4"},
      {"\x01t\x01\0\0\0"s, "ends too early"},
      {"\x01t\x01\xff\xff\xff\xff"s, "ends too early"},
      {"\x01t\x01\x02\0\0\0\0\0\0\0\0\0\0\0"s, "ends too early"},
      {"\x01t\x00\x01\0\0\0\xff\xff\xff\xff"s, "ends too early"},
      {"\x01t\x03\x01\0\x10\0"s, "too many tensors"},
      {"\x01t\x03\0\0\0\0\x01t\x03\0\0\0\0"s, "occurs twice"},
      {sound + "x", "ends too early"},
      {sound + sound, "occurs twice"},
      {static_cast<char>(WireLimits::kMostNameBytes + 1) + std::string(WireLimits::kMostNameBytes + 1, 'n') +
           "\x03\0\0\0\0"s,
       "too short or too long"}};
  for (const auto& [bytes, why] : malformed) {
    EXPECT_THAT([&bytes = bytes] { decode_fields(bytes); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)))
        << testing::PrintToString(bytes);
  }
  for (std::size_t size = 1; size < sound.size(); ++size) {
    try {  // the beginning of a record is one where a field ends
      EXPECT_EQ(encode_fields(decode_fields(sound.substr(0, size))), sound.substr(0, size));
    } catch (const InvalidArgument&) {
    }
  }
}

TEST(WireFields, BeyondTheLimitsAreNotSent) {
  std::vector<WireField> fields;
  for (std::size_t index = 0; index < WireLimits::kMostFields; ++index) {
    fields.push_back({std::to_string(index), Integers{1}});
  }
  EXPECT_EQ(decode_fields(encode_fields(fields)).size(), fields.size());
  std::string bytes = encode_fields(fields);
  fields.push_back({"one more", Integers{1}});
  EXPECT_THROW(encode_fields(fields), InvalidArgument);
  EXPECT_THROW(decode_fields(bytes + bytes), InvalidArgument);
  EXPECT_THROW(encode_fields({{"", Integers{1}}}), InvalidArgument);
  EXPECT_THROW(encode_fields({{std::string(WireLimits::kMostNameBytes + 1, 'n'), Integers{1}}}), InvalidArgument);
  EXPECT_THROW(encode_fields({{"a", Integers{1}}, {"a", Texts{"1"}}}), InvalidArgument);
  EXPECT_THROW(encode_fields({{"a", TensorCount{WireLimits::kMostTensors}}, {"b", TensorCount{1}}}), InvalidArgument);
  EXPECT_THROW(encode_fields({{"a", Texts{std::string(WireLimits::kMostBytes, 'x')}}}), InvalidArgument);
  EXPECT_THROW(decode_fields(std::string(WireLimits::kMostBytes + 1, '\0')), InvalidArgument);
}

std::string mutated(std::string bytes, std::mt19937& random) {
  for (std::uint32_t change = 0; change <= random() % 3; ++change) {
    const std::size_t place = bytes.empty() ? 0 : random() % bytes.size();
    switch (bytes.empty() ? 3 : random() % 6) {
      case 0:
        bytes[place] = static_cast<char>(random());
        break;
      case 1:
        bytes[place] = static_cast<char>(bytes[place] + (random() % 2 == 0 ? 1 : -1));
        break;
      case 2:
        bytes.erase(place, 1 + random() % 16);
        break;
      case 3:
        bytes.insert(place, bytes.substr(bytes.empty() ? 0 : random() % bytes.size(), random() % 40));
        break;
      case 4:
        bytes.resize(place);
        break;
      default:  // a length
        for (std::size_t byte = place; byte < std::min(place + 4, bytes.size()); ++byte) {
          bytes[byte] = static_cast<char>(random() % 2 == 0 ? 0xff : 0);
        }
    }
  }
  return bytes;
}

// The number of records to try: 50,000, or what GPIPE_FUZZ_FILES says.
int num_records() {
  const char* const said = std::getenv("GPIPE_FUZZ_FILES");
  return said == nullptr ? 50'000 : std::atoi(said);
}

TEST(WireFields, OfMutatedBytesAreRefusedOrTheOnlyOnesWithThoseBytes) {
  constexpr std::uint32_t kSeed = 17;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string sound = encode_fields(some_fields());
  std::mt19937 random(kSeed);
  int num_accepted = 0;
  const int count = num_records();
  for (int round = 0; round < count; ++round) {
    const std::string text = mutated(sound, random);
    // Of exactly its size, so that the address sanitizer sees a read behind its end.
    const std::unique_ptr<char[]> bytes(new char[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    // A vector of fields grows by doubling; texts are larger than the four bytes that each has at least.
    const std::size_t most = 8 * text.size() + 2 * WireLimits::kMostFields * sizeof(WireField);
    reset_largest_allocation();
    try {
      const std::vector<WireField> fields = decode_fields({bytes.get(), text.size()});
      ASSERT_LE(largest_allocation(), most) << "round " << round;
      ASSERT_EQ(encode_fields(fields), text) << "round " << round;
      ++num_accepted;
    } catch (const InvalidArgument&) {
      ASSERT_LE(largest_allocation(), most) << "round " << round;
    }
  }
  EXPECT_GT(num_accepted, count / 100);
  EXPECT_LT(num_accepted, count / 2);
}

}  // namespace
}  // namespace gpipe::detail
