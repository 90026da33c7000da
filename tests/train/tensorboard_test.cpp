// Event files down to the byte: known checksums, a file decoded by a reader written from the format's description.
#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "gpipe/error.h"
#include "tests/os/temporary_folder.h"

namespace gpipe::train {
namespace {

using ::testing::HasSubstr;

template <typename Value>
Value take(std::string_view& bytes) {
  Value value{};
  if (bytes.size() < sizeof value) throw std::runtime_error("cut off");
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a message, each once: numbers as their bits, the rest as bytes.
struct Message {
  std::map<std::uint64_t, std::uint64_t> numbers;
  std::map<std::uint64_t, std::string> texts;
};

Message decode(std::string_view bytes) {
  Message message;
  while (!bytes.empty()) {
    const std::uint64_t key = take_varint(bytes);
    const std::uint64_t field = key >> 3;
    EXPECT_EQ(message.numbers.count(field) + message.texts.count(field), 0u) << field;
    if ((key & 7) == 0) message.numbers[field] = take_varint(bytes);
    if ((key & 7) == 1) message.numbers[field] = take<std::uint64_t>(bytes);
    if ((key & 7) == 5) message.numbers[field] = take<std::uint32_t>(bytes);
    if ((key & 7) == 2) {
      const std::uint64_t size = take_varint(bytes);
      message.texts[field] = bytes.substr(0, size);
      bytes.remove_prefix(size);
    }
  }
  return message;
}

double as_double(std::uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float as_float(std::uint64_t bits) {
  float value = 0;
  const auto low = static_cast<std::uint32_t>(bits);
  std::memcpy(&value, &low, sizeof value);
  return value;
}

std::vector<std::string> read_records(const std::string& content) {
  std::vector<std::string> records;
  for (std::string_view bytes = content; !bytes.empty();) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked_crc32c(length_bytes));
    records.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked_crc32c(records.back()));
  }
  return records;
}

TEST(TensorBoard, EventsAreTheseBytes) {
  // wall_time = 1.5, file_version = "brain.Event:2"
  EXPECT_EQ(file_version_event(1.5), std::string("\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"
                                                 "brain.Event:2",
                                                 24));
  // wall_time = 2, step = 300, summary { value { tag = "a/b", simple_value = 1.5 } }
  EXPECT_EQ(scalar_event("a/b", 1.5, 300, 2), std::string("\x09\0\0\0\0\0\0\0\x40\x10\xac\x02\x2a\x0c\x0a\x0a\x0a\x03"
                                                          "a/b"
                                                          "\x15\0\0\xc0\x3f",
                                                          26));
}

// The values without the mask are those of RFC 3720, appendix B.4.
TEST(TensorBoard, ChecksumsOfKnownBytesAreKnown) {
  const auto masked = [](std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
  EXPECT_EQ(masked_crc32c("123456789"), masked(0xe3069283u));
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), masked(0x8a9136aau));
  EXPECT_EQ(masked_crc32c(std::string(32, '\xff')), masked(0x62a8ab43u));
  std::string rising;
  for (int byte = 0; byte < 32; ++byte) rising += static_cast<char>(byte);
  EXPECT_EQ(masked_crc32c(rising), masked(0x46dd794eu));
  EXPECT_EQ(masked_crc32c(std::string(rising.rbegin(), rising.rend())), masked(0x113fdb5cu));
}

// Frames of the same events in files that TensorFlow's own readers take.
TEST(TensorBoard, RecordsHaveTheChecksumsOfTensorFlow) {
  const std::string first = tfrecord(file_version_event(256.5));
  EXPECT_EQ(first.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(first.substr(first.size() - 4), "\xbc\x98\x21\x2b");
  const std::string scalar = tfrecord(scalar_event("v/1", 1.5, 1, 256.5));
  EXPECT_EQ(scalar.substr(0, 12), std::string("\x19\0\0\0\0\0\0\0\x8b\xf1\x08\x28", 12));
  EXPECT_EQ(scalar.substr(scalar.size() - 4), "\x2c\xec\xc0\x87");
}

TEST(TensorBoard, WhatIsWrittenIsReadBack) {
  const test::TemporaryFolder folder;
  std::string path;
  {
    TensorBoardWriter writer(folder.path("runs/one"), 1700000000.25);
    writer.add_scalar("train/loss", 0.1, 1, 1700000001);
    writer.add_scalar("größe", -1e30, 1LL << 40, 1700000002);
    writer.add_scalar("train/loss", std::nan(""), -1, 1700000003);
    writer.flush();
    path = writer.path();
  }
  const std::vector<std::string> records = read_records(test::content_of(path));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(decode(records[0]).texts.at(3), "brain.Event:2");
  EXPECT_EQ(as_double(decode(records[0]).numbers.at(1)), 1700000000.25);
  const auto value_of = [](const std::string& record) {
    return decode(decode(decode(record).texts.at(5)).texts.at(1));
  };
  EXPECT_EQ(value_of(records[1]).texts.at(1), "train/loss");
  EXPECT_EQ(as_float(value_of(records[1]).numbers.at(2)), 0.1f);
  EXPECT_EQ(decode(records[1]).numbers.at(2), 1u);
  EXPECT_EQ(value_of(records[2]).texts.at(1), "größe");
  EXPECT_EQ(as_float(value_of(records[2]).numbers.at(2)), -1e30f);
  EXPECT_EQ(decode(records[2]).numbers.at(2), std::uint64_t{1} << 40);
  EXPECT_TRUE(std::isnan(as_float(value_of(records[3]).numbers.at(2))));
  EXPECT_EQ(decode(records[3]).numbers.at(2), std::numeric_limits<std::uint64_t>::max());
}

// TensorBoard finds event files by "tfevents" in their names.
TEST(TensorBoard, EachWriterHasAFileOfItsOwn) {
  const test::TemporaryFolder folder;
  const TensorBoardWriter first(folder.path("runs"), 1700000000);
  const TensorBoardWriter second(folder.path("runs"), 1700000000);
  EXPECT_THAT(first.path(), HasSubstr("/runs/events.out.tfevents.1700000000."));
  EXPECT_NE(first.path(), second.path());
}

TEST(TensorBoard, SaysWhyItCannotWrite) {
  try {
    TensorBoardWriter("/dev/null/runs", 0);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot write '/dev/null/runs': Not a directory"));
  }
}

}  // namespace
}  // namespace gpipe::train
