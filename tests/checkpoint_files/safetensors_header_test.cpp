// Whatever is not a sound file is refused by its header, and what is accepted is within the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "gpipe/checkpoint_files/safetensors_format.h"
#include "tests/checkpoint_files/largest_allocation.h"

namespace gpipe::detail {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string file_of(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (int index = 0; index < 8; ++index) length[index] = static_cast<char>(header.size() >> (8 * index));
  return length + header + data;
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(SafetensorsHeader, RefusesWhatDoesNotFollowTheFormat) {
  std::string ones;
  for (int count = 0; count < 64; ++count) ones += ",1";
  const std::string byte = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  const struct {
    std::string header;
    std::string data;
    std::string why;
  } cases[] = {
      {"", "", "does not begin with a brace"},
      {"[]", "", "no JSON object"},
      {" {}", "", "does not begin with a brace"},
      {"\xEF\xBB\xBF{}", "", "does not begin with a brace"},
      {"{}\n", "", "only spaces behind it"},
      {"{} {}", "", "no JSON from byte"},
      {"{", "", "no JSON"},
      {"{\"\xff\":3}", "", "not UTF-8 at byte 2"},
      {"{\"\xc0\xaf\":3}", "", "not UTF-8"},
      {R"({"\ud800":3})", "", "no JSON from byte"},
      {R"({"a":3})", "", "needs dtype"},
      {R"({"a":{}})", "", "has no dtype"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "1234", "has no data_offsets"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "1234", "has no shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", "1234", "\"x\" is 1"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]}})", "1234", "each once"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234", "dtype occurs twice"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "1234", "shape holds a list"},
      {R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", "1234", "\"shape\" is an object"},
      {one("\"F31\"", "[1]", "[0,4]"), "1234", "unknown dtype \"F31\""},
      {one("\"f32\"", "[1]", "[0,4]"), "1234", "unknown dtype"},
      {one("3", "[1]", "[0,4]"), "1234", "\"dtype\" is 3"},
      {one("null", "[1]", "[0,4]"), "1234", "\"dtype\" is null"},
      {one("\"F32\"", "[-1]", "[0,4]"), "1234", "shape holds -1"},
      {one("\"F32\"", "[1.5]", "[0,4]"), "1234", "shape holds 1.5"},
      {one("\"F32\"", "[true]", "[0,4]"), "1234", "shape holds true"},
      {one("\"F32\"", "[1e0]", "[0,4]"), "1234", "shape holds 1e0"},
      {one("\"F32\"", "[18446744073709551615]", "[0,4]"), "1234", "shape holds"},
      {one("\"F32\"", "[99999999999999999999999]", "[0,4]"), "1234", "shape holds"},
      {one("\"F32\"", "[4611686018427387904,4]", "[0,0]"), "", "do not make the shape"},
      {one("\"F32\"", "[0,4611686018427387904,4]", "[0,0]"), "", "do not make the shape"},
      {one("\"F32\"", "[2]", "[0,4]"), "1234", "do not make the shape [2] of F32"},
      {one("\"F32\"", "[1]", "[4,0]"), "1234", "do not make the shape"},
      {one("\"F32\"", "[1]", "[0]"), "1234", "must be two numbers"},
      {one("\"F32\"", "[1]", "[0,4,8]"), "1234", "must be two numbers"},
      {one("\"F32\"", "[1]", "[4,8]"), "12345678", "begins at 4, not at 0"},
      {one("\"F32\"", "[1]", "[0,4]"), "12345678", "8 bytes of data, but its header speaks of 4"},
      {one("\"F32\"", "[1]", "[0,4]"), "12", "cut short"},
      {one("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), "1234", "begins at 9223372036854775803"},
      {R"({"a":)" + byte + R"(,"b":)" + byte + "}", "1", "begins at 0, not at 1"},
      {R"({"a":)" + byte + R"(,"a":)" + byte + "}", "1", "\"a\" occurs twice"},
      {R"({"a":)" + byte + R"(,"\u0061":)" + byte + "}", "1", "\"a\" occurs twice"},
      {R"({"__metadata__":{"a":1}})", "", "is no text"},
      {R"({"__metadata__":{"a":{}}})", "", "is no text"},
      {R"({"__metadata__":{"a":"1","a":"1"}})", "", "\"a\" occurs twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "\"__metadata__\" occurs twice"},
      {R"({"__metadata__":[]})", "", "its metadata is a list"},
      {one("\"F32\"", "[1" + ones + "]", "[0,4]"), "1234", "more than 64 dimensions"},
      {"{\"" + std::string(1000, 'n') + "\":3}", "", "nnn\"..."},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT([&] { parse_safetensors(file_of(bad.header, bad.data), "file"); },
                ThrowsMessage<CheckpointError>(HasSubstr(bad.why)))
        << bad.header;
  }
  EXPECT_THAT([] { parse_safetensors("abc", "file"); }, ThrowsMessage<CheckpointError>(HasSubstr("it has 3 bytes")));
  EXPECT_THAT([] { parse_safetensors(std::string(8, '\xff') + "{}", "file"); },
              ThrowsMessage<CheckpointError>(HasSubstr("its header would have 18446744073709551615 bytes")));
  try {
    parse_safetensors("", "the file");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.path(), "the file");
  }
}

TEST(SafetensorsHeader, TakesWhatFollowsIt) {
  const SafetensorsHeader header =
      parse_safetensors(file_of(R"({"b":{"shape":[],"dtype":"I64","data_offsets":[3,11]},)"
                                R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                R"("":{"dtype":"F16","shape":[0,7],"data_offsets":[3,3]},"__metadata__":{"k":"v"}}   )",
                                "12345678901"),
                        "file");
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "");
  EXPECT_EQ(header.entries[1].name, "a");
  EXPECT_EQ(header.entries[2].begin, 3);
  EXPECT_EQ(header.entries[2].num_bytes(), 8);
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_TRUE(parse_safetensors(file_of("{}", ""), "file").entries.empty());
}

TEST(SafetensorsHeader, IsWrittenSoThatEveryElementIsAligned) {
  std::vector<SafetensorsEntry> entries;
  for (const char* type : {"U8", "F64", "F16", "F32", "BOOL"}) {
    entries.push_back({std::string("of ") + type, find_safetensors_type(type), {3}, 0, 0});
  }
  const std::string header = make_safetensors_header(entries, {{"key", "value"}});
  const SafetensorsHeader read = parse_safetensors(header + std::string(entries.back().end, 'x'), "file");
  EXPECT_EQ(read.data_start % 8, 0);
  ASSERT_EQ(read.entries.size(), 5u);
  for (const SafetensorsEntry& entry : read.entries) EXPECT_EQ(entry.begin % entry.type->bytes, 0) << entry.name;
}

// Changes a sound file as damage does, and as somebody would who knows the format.
std::string mutated(std::string file, std::mt19937& random) {
  static const std::vector<std::string> tokens = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "0",
                                                  "1",
                                                  "-1",
                                                  "4",
                                                  "8",
                                                  "1e9",
                                                  "9223372036854775807",
                                                  "18446744073709551615",
                                                  "4611686018427387904",
                                                  "null",
                                                  "true",
                                                  "\"F32\"",
                                                  "\"F64\"",
                                                  "\"U8\"",
                                                  "\"dtype\"",
                                                  "\"shape\"",
                                                  "\"data_offsets\"",
                                                  "\"__metadata__\"",
                                                  "\\ud800",
                                                  "\xff",
                                                  "\xc3\xa9",
                                                  "[[[[[[[[",
                                                  "[0,4]",
                                                  "{\"a\":{}}"};
  const auto at = [&](std::size_t size) { return size == 0 ? 0 : random() % size; };
  for (int edit = static_cast<int>(random() % 4); edit >= 0; --edit) {
    const std::size_t place = random() % 4 == 0 ? at(std::min<std::size_t>(file.size(), 8)) : at(file.size());
    switch (random() % 7) {
      case 0:
        file.erase(place, 1 + random() % 20);
        break;
      case 1:
        file.insert(std::min(place, file.size()), tokens[at(tokens.size())]);
        break;
      case 2: {  // a number for another, so that the length stays right
        const std::size_t digit = file.find_first_of("0123456789", place);
        if (digit != std::string::npos) file[digit] = static_cast<char>('0' + random() % 10);
        break;
      }
      case 3: {
        const std::string piece = file.substr(place, random() % 60);
        file.insert(at(file.size() + 1), piece);
        break;
      }
      case 4:
        file.resize(place);
        break;
      default:
        if (place < file.size()) file[place] = static_cast<char>(random());
    }
  }
  if (random() % 2 == 0 && file.size() >= 8) {  // as if the header were as long as it is
    const std::size_t end = file.rfind("}}");
    const std::uint64_t length = end == std::string::npos ? file.size() - 8 : std::max<std::size_t>(end + 2, 8) - 8;
    std::memcpy(file.data(), &length, sizeof length);
  }
  return file;
}

// The number of files to try: 50,000, or what GPIPE_FUZZ_FILES says.
int num_files() {
  const char* said = std::getenv("GPIPE_FUZZ_FILES");
  return said == nullptr ? 50'000 : std::atoi(said);
}

TEST(SafetensorsHeader, EveryMutatedFileIsRefusedOrWithinItself) {
  std::vector<SafetensorsEntry> entries;
  for (const char* type : {"F32", "I64", "BF16", "BOOL", "U8"}) {
    entries.push_back({std::string("layer.") + type, find_safetensors_type(type), {2, 3}, 0, 0});
  }
  const std::string header = make_safetensors_header(entries, {{"format", "pt"}});
  const std::string sound = header + std::string(entries.back().end, 'x');
  std::mt19937 random(11);
  int accepted = 0;
  const int count = num_files();
  for (int round = 0; round < count; ++round) {
    const std::string text = mutated(sound, random);
    // Of exactly its size, so that the address sanitizer sees a read behind its end.
    const std::unique_ptr<char[]> bytes(new char[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    const std::string_view file(bytes.get(), text.size());
    try {
      reset_largest_allocation();
      const SafetensorsHeader read = parse_safetensors(file, "file");
      // Its own entries are somewhat larger than the text they are made of.
      ASSERT_LE(largest_allocation(), 4 * file.size() + 4096);
      std::int64_t sum = 0;
      for (const SafetensorsEntry& entry : read.entries) {
        ASSERT_LE(entry.begin, entry.end);
        const std::string_view data = file.substr(read.data_start).substr(entry.begin, entry.num_bytes());
        ASSERT_EQ(static_cast<std::int64_t>(data.size()), entry.num_bytes());
        sum += entry.num_bytes() + std::accumulate(data.begin(), data.end(), std::int64_t{0}) * 0;
      }
      ASSERT_EQ(sum, static_cast<std::int64_t>(file.size()) - read.data_start);
      ++accepted;
    } catch (const CheckpointError&) {
      ASSERT_LE(largest_allocation(), 4 * file.size() + 4096);
    }
  }
  EXPECT_GT(accepted, count / 1000);
  EXPECT_LT(accepted, count / 2);
}

TEST(SafetensorsIndexFile, ComesBackAndRefusesFilesElsewhere) {
  SafetensorsIndex index;
  index.total_bytes = 12;
  index.file_of = {{"a", shard_name("model", 0, 2)}, {"b", shard_name("model", 1, 2)}};
  EXPECT_EQ(index.file_of.at("b"), "model-00002-of-00002.safetensors");
  const SafetensorsIndex read = parse_safetensors_index(to_json(index), "index");
  EXPECT_EQ(read.file_of, index.file_of);
  EXPECT_EQ(read.total_bytes, 12);
  for (const char* file : {"\"../x\"", "\"/etc/passwd\"", "\"a/b\"", "\"\"", "\"..\"", "3", "null", "\"a\\u0000b\""}) {
    EXPECT_THAT([&] { parse_safetensors_index(R"({"weight_map":{"a":)" + std::string(file) + "}}", "index"); },
                ThrowsMessage<CheckpointError>(HasSubstr("no file of the same folder")))
        << file;
  }
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":"x","a":"y"}})", "{\"\xff\":1}"}) {
    EXPECT_THROW(parse_safetensors_index(text, "index"), CheckpointError) << text;
  }
  EXPECT_THROW(parse_safetensors_index(R"({"weight_map":)" + std::string(100, '[') + "}", "index"), CheckpointError);
}

}  // namespace
}  // namespace gpipe::detail
