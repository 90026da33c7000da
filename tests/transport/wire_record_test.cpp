// What ranks tell each other: everything comes back, and a reader refuses what it has not asked for.
#include "gpipe/transport/wire_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "gpipe/error.h"
#include "tests/model/same_bits.h"

namespace gpipe::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr const char* kNotATest = "this is not a test's record";

WireRecord some_record() {
  WireRecord record;
  record.add("name", "train_step");
  record.add("step", 7);
  record.add("training", true);
  record.add("seconds", 0.1);
  record.add("losses", torch::ones({2, 3}));
  record.add("weights", at::Tensor());
  record.add("names", std::vector<std::string>{"a", "", "\xff"});
  record.add("layers", std::vector<int>{3, -1});
  record.add("flags", std::vector<bool>{true, false});
  record.add("starts", std::vector<double>{-0.0, std::nan("")});
  record.add("norms", Tensors{torch::zeros({}), at::Tensor(), torch::arange(4)});
  record.add("nothing", std::vector<std::int64_t>());
  return record;
}

TEST(WireRecord, EverythingComesBack) {
  const WireRecord record = decode(encode(some_record()));
  WireReader reader(record, kNotATest);
  EXPECT_EQ(reader.text("name"), "train_step");
  EXPECT_EQ(reader.integer<int>("step"), 7);
  EXPECT_TRUE(reader.flag("training"));
  EXPECT_EQ(reader.number("seconds"), 0.1);
  EXPECT_TRUE(test::same_bits(reader.tensor("losses"), torch::ones({2, 3})));
  EXPECT_FALSE(reader.tensor("weights").defined());
  EXPECT_THAT(reader.texts("names"), ElementsAre("a", "", "\xff"));
  EXPECT_THAT(reader.integers<int>("layers", -1), ElementsAre(3, -1));
  EXPECT_THAT(reader.flags("flags"), ElementsAre(true, false));
  EXPECT_TRUE(std::signbit(reader.numbers("starts").at(0)));
  EXPECT_TRUE(std::isnan(reader.numbers("starts").at(1)));
  EXPECT_TRUE(test::same_bits(reader.tensors("norms"), {torch::zeros({}), at::Tensor(), torch::arange(4)}));
  EXPECT_TRUE(reader.has("nothing"));
  EXPECT_FALSE(reader.has("something"));
  EXPECT_THAT(reader.integers("nothing"), IsEmpty());
  reader.finish();
}

TEST(WireRecord, ComesBackFromTextUnlessItHasTensors) {
  WireRecord record;
  record.add("text", std::string("a\0b", 3));
  const WireRecord again = decode_text(encode_text(record));
  EXPECT_EQ(WireReader(again, kNotATest).text("text"), std::string("a\0b", 3));
  EXPECT_THAT(decode_text("").fields(), IsEmpty());
  EXPECT_EQ(encode_text({}), "");
  EXPECT_THROW(encode_text(some_record()), InvalidArgument);
  EXPECT_THROW(decode_text(encode_fields(some_record().fields())), InvalidArgument);
}

TEST(WireRecord, HasEachNameOnce) {
  WireRecord record = some_record();
  EXPECT_THROW(record.add("step", 8), InvalidArgument);
  EXPECT_THROW(record.add("step", torch::ones(1)), InvalidArgument);
  EXPECT_THROW(record.append(record), InvalidArgument);
}

TEST(WireReader, NamesWhatIsWrong) {
  const WireRecord record = some_record();
  const auto expect_refusal = [&](const std::function<void(WireReader&)>& read, const std::string& why) {
    WireReader reader(record, kNotATest);
    EXPECT_THAT([&] { read(reader); }, ThrowsMessage<InvalidArgument>(std::string(kNotATest) + ": " + why));
  };
  expect_refusal([](WireReader& reader) { reader.text("nam"); }, "'nam' is missing");
  expect_refusal([](WireReader& reader) { reader.text("step"); }, "'step' has integers, not texts");
  expect_refusal([](WireReader& reader) { reader.integer("name"); }, "'name' has texts, not integers");
  expect_refusal([](WireReader& reader) { reader.number("losses"); }, "'losses' has tensors, not numbers");
  expect_refusal([](WireReader& reader) { reader.tensor("seconds"); }, "'seconds' has numbers, not tensors");
  expect_refusal([](WireReader& reader) { reader.text("names"); }, "'names' has 3 values, not one");
  expect_refusal([](WireReader& reader) { reader.integer("nothing"); }, "'nothing' has 0 values, not one");
  expect_refusal([](WireReader& reader) { reader.tensor("norms"); }, "'norms' has 3 values, not one");
  expect_refusal([](WireReader& reader) { reader.number("starts"); }, "'starts' has 2 values, not one");
  expect_refusal([](WireReader& reader) { reader.integer<int>("step", 8); },
                 "'step' is 7, not a number from 8 to 2147483647");
  expect_refusal([](WireReader& reader) { reader.integer<int>("step", 0, 6); },
                 "'step' is 7, not a number from 0 to 6");
  expect_refusal([](WireReader& reader) { reader.integers<int>("layers", 0, 9); },
                 "'layers' is -1, not a number from 0 to 9");
  expect_refusal([](WireReader& reader) { reader.flag("step"); }, "'step' is 7, not a number from 0 to 1");
  expect_refusal([](WireReader& reader) { reader.flags("layers"); }, "'layers' is 3, not a number from 0 to 1");
  expect_refusal(
      [](WireReader& reader) {
        reader.num_rows({"names", "norms", "layers"});
      },
      "'layers' has 2 values, but 'names' has 3");
  expect_refusal([](WireReader& reader) { reader.num_rows({"names", "columns"}); }, "'columns' is missing");
  expect_refusal(
      [](WireReader& reader) {
        reader.check_num_rows({"names", "layers"}, 3);
      },
      "'layers' has 2 values, not 3");
  EXPECT_EQ(WireReader(record, kNotATest).num_rows({"names", "norms"}), 3U);
  WireReader(record, kNotATest).check_num_rows({"names", "norms"}, 3);
}

TEST(WireReader, RefusesAFieldThatNobodyHasAskedFor) {
  WireRecord record;
  record.add("step", 1);
  record.add("stpe\x1b", 2);
  record.add("tensors", Tensors{torch::ones(1), torch::ones(2)});
  record.add("last", torch::ones(3));
  WireReader reader(record, kNotATest);
  EXPECT_EQ(reader.integer("step"), 1);
  EXPECT_TRUE(reader.has("last"));  // to ask whether it is there is not to read it
  EXPECT_THAT([&] { reader.finish(); }, ThrowsMessage<InvalidArgument>(HasSubstr("'stpe\\x1b' does not belong there")));
  reader.tensors("tensors");
  const WireRecord rest = reader.rest();
  WireReader of_rest(rest, kNotATest);
  EXPECT_EQ(of_rest.tensor("last").numel(), 3);
  EXPECT_THROW(of_rest.finish(), InvalidArgument);
  EXPECT_EQ(of_rest.integer("stpe\x1b"), 2);
  of_rest.finish();
}

TEST(WireRecord, OfTensorsThatAreNoneIsRefused) {
  const Tensors sound = encode(some_record());
  EXPECT_THROW(decode({}), InvalidArgument);
  for (const at::Tensor& bytes : {at::Tensor(), sound[0].to(at::kInt), sound[0].unsqueeze(0),
                                  sound[0].slice(0, 0, -1, 2), sound[0].slice(0, 0, -1), torch::ones({})}) {
    Tensors tensors = sound;
    tensors[0] = bytes;
    EXPECT_THROW(decode(tensors), InvalidArgument);
  }
  Tensors more = sound;
  more.emplace_back();
  EXPECT_THROW(decode(more), InvalidArgument);
  EXPECT_THROW(decode({sound.begin(), sound.end() - 1}), InvalidArgument);
}

TEST(WireRecord, OfMutatedTensorsIsRefusedOrComesBack) {
  constexpr std::uint32_t kSeed = 23;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const char* const said = std::getenv("GPIPE_FUZZ_FILES");
  const int count = said == nullptr ? 50'000 : std::atoi(said);
  const Tensors sound = encode(some_record());
  std::mt19937 random(kSeed);
  int num_accepted = 0;
  for (int round = 0; round < count; ++round) {
    Tensors tensors = sound;
    tensors[0] = sound[0].clone();
    auto* const bytes = tensors[0].data_ptr<std::uint8_t>();
    for (std::uint32_t change = 0; change <= random() % 2; ++change) {
      bytes[random() % static_cast<std::uint32_t>(tensors[0].numel())] ^= std::uint8_t{1} << random() % 8;
    }
    if (random() % 8 == 0) tensors[0] = tensors[0].slice(0, 0, random() % static_cast<std::uint32_t>(sound[0].numel()));
    if (random() % 8 == 0) tensors.emplace_back();
    if (random() % 8 == 0) tensors.pop_back();
    try {
      const WireRecord record = decode(tensors);
      ASSERT_TRUE(test::same_bits(encode(record), tensors)) << "round " << round;
      ++num_accepted;
      WireReader reader(record, kNotATest);  // whatever is in it, to read it either goes well or is refused
      for (const WireField& field : record.fields()) reader.tensors(field.name);
    } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch) that is what is to happen
    }
  }
  EXPECT_GT(num_accepted, count / 100);
  EXPECT_LT(num_accepted, count * 3 / 4);
}

}  // namespace
}  // namespace gpipe::detail
