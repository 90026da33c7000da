// What a cut tells of layers, stages and skips; a cut as a record for other ranks, and records that are none.
#include "gpipe/execute/cut/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpipe/error.h"
#include "gpipe/schedule/validate.h"
#include "gpipe/transport/wire_record.h"

namespace gpipe::detail {
namespace {

TEST(Cut, TellsTheStageAndTheWorkerOfALayer) {
  Cut cut;
  cut.worker_of_stage = {0, 1, 0};
  EXPECT_FALSE(cut.is_made());
  EXPECT_EQ(cut.stage_of(3), 0);
  cut.layers_per_stage = {1, 2, 1};
  EXPECT_TRUE(cut.is_made());
  EXPECT_EQ(cut.stage_of(0), 0);
  EXPECT_EQ(cut.stage_of(2), 1);
  EXPECT_EQ(cut.stage_of(3), 2);
  EXPECT_EQ(cut.worker_of_layer(3), 0);
  EXPECT_EQ(cut.worker_of_layer(1), 1);
}

TEST(Cut, KnowsTheSkipsOfTrainingAndOfEvaluationApart) {
  Cut cut;
  EXPECT_TRUE(cut.skips_in(true).empty());
  SkipProfile skip;
  skip.name = "long";
  cut.skips[true] = {skip};
  EXPECT_EQ(cut.skips_in(true).size(), 1U);
  EXPECT_TRUE(cut.skips_in(false).empty());
}

Cut some_cut() {
  Cut chosen;
  chosen.layers_per_stage = {2, 1};
  chosen.recompute_by_stage = {Recompute::kAlways, Recompute::kNever};
  chosen.rematerialization = {parse_rematerialization("0-1"), {}};
  chosen.order = parse_text("F0 F1 B0 B1\nF0 B0 F1 B1\n");
  for (const char* name : {"a", "b", "c"}) {
    LayerProfile layer;
    layer.name = name;
    layer.forward_seconds = 0.5;
    layer.backward_seconds = 1;
    chosen.profile.layers.push_back(layer);
  }
  chosen.profile.skips = {{"one \xff name", 0, 2, 16}, {"", 1, 1, 0}};
  return chosen;
}

TEST(Cut, RefusesAnOrderThatIsNotForTheOptions) {
  const Schedule order = parse_text("F0 F1 B0 B1\nF0 B0 F1 B1\n");
  check_order(order, PipelineOptions(2).num_micro_batches(2));
  EXPECT_THROW(check_order(order, PipelineOptions(3).num_micro_batches(2)), InvalidArgument);
  EXPECT_THROW(check_order(order, PipelineOptions(2).num_micro_batches(4)), InvalidArgument);
  EXPECT_THROW(check_order(parse_text("1F0 1B0\n0F0 0B0\n"), PipelineOptions(2).num_micro_batches(1)), InvalidArgument);
  EXPECT_THROW(check_order(parse_text("F0 B0 F1 B1\nF0 F1 B0 B1\n"), PipelineOptions(2).num_micro_batches(2)),
               ScheduleError);
}

TEST(Cut, ComesBackFromItsRecord) {
  const Cut chosen = some_cut();
  const std::string text = encode_text(to_record(chosen));
  const Cut again = read_cut(decode_text(text));
  EXPECT_EQ(again.layers_per_stage, chosen.layers_per_stage);
  EXPECT_EQ(*again.order, *chosen.order);
  EXPECT_EQ(again.recompute_by_stage, chosen.recompute_by_stage);
  EXPECT_EQ(again.profile.skips.size(), 2U);
  EXPECT_EQ(encode_text(to_record(again)), text);
  EXPECT_TRUE(read_cut(to_record(Cut())).profile.layers.empty());
}

TEST(Cut, OfARecordThatIsNoneIsRefused) {
  struct Skips {
    std::vector<std::string> names;
    std::vector<std::int64_t> from;
    std::vector<std::int64_t> to;
    std::vector<std::int64_t> bytes;
  };
  Profile profile = some_cut().profile;
  profile.skips.clear();
  const auto with = [&](std::vector<std::int64_t> layers, const std::string& recompute, const std::string& runs,
                        const std::string& json, const Skips& skips) {
    WireRecord record;
    record.add("layers", layers);
    record.add("recompute", recompute);
    record.add("rematerialization", runs);
    if (!json.empty()) record.add("profile", json);
    record.add("skips", skips.names);
    record.add("from", skips.from);
    record.add("to", skips.to);
    record.add("bytes", skips.bytes);
    return record;
  };
  const std::string json = to_json(profile);
  EXPECT_EQ(read_cut(with({3}, "always", "", json, {{"s"}, {0}, {1}, {1}})).profile.skips.size(), 1U);
  std::vector<WireRecord> malformed = {with({3}, "always", "", json, {{"s"}, {0}, {1}, {}}),
                                       with({3}, "always", "", json, {{}, {0}, {1}, {1}}),     // of no skip
                                       with({3}, "always", "", json, {{"s"}, {0}, {3}, {1}}),  // there are three layers
                                       with({3}, "always", "", json, {{"s"}, {2}, {1}, {1}}),  // backwards
                                       with({3}, "always", "", json, {{"s"}, {-1}, {1}, {1}}),
                                       with({3}, "always", "", json, {{"s"}, {0}, {1}, {-1}}),
                                       with({3}, "always", "", json, {{"s"}, {0}, {1LL << 32}, {1}}),
                                       with({3}, "always", "", "", {{"s"}, {0}, {1}, {1}}),  // of no profile
                                       with({0}, "always", "", json, {}),
                                       with({-1}, "always", "", json, {}),
                                       with({2147483648}, "always", "", json, {}),
                                       with({3}, "sometimes", "", json, {}),
                                       with({3}, "always", "3-1", json, {}),
                                       with({3}, "always", "", "{}", {})};
  malformed.push_back(to_record(some_cut()));
  malformed.back().add("something", "else");
  malformed.emplace_back();
  for (std::size_t index = 0; index < malformed.size(); ++index) {
    EXPECT_THROW(read_cut(malformed[index]), Error) << index;
  }
}

TEST(Cut, OfDamagedBytesIsRefusedOrAnother) {
  const std::string whole = encode_text(to_record(some_cut()));
  std::mt19937 random(11);
  int num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (std::uint32_t change = 0; change <= random() % 3; ++change) {
      const std::size_t place = random() % (text.size() - 1);
      switch (random() % 4) {
        case 0:
          text[place] = static_cast<char>(random());
          break;
        case 1:
          text[place] = "\x00\x01\x02\x03\x04\x08\xff"[random() % 7];
          break;
        case 2:
          text.erase(place, 1 + random() % 8);
          break;
        default:
          text.insert(place, text.substr(random() % text.size(), random() % 24));
          break;
      }
      if (text.size() < 2) break;
    }
    try {
      const Cut decoded = read_cut(decode_text(text));
      for (const int count : decoded.layers_per_stage) ASSERT_GE(count, 1);
      for (const SkipProfile& skip : decoded.profile.skips) {
        ASSERT_LE(skip.from, skip.to);
        ASSERT_LT(static_cast<std::size_t>(skip.to), decoded.profile.layers.size());
      }
    } catch (const Error&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 10000);
}

}  // namespace
}  // namespace gpipe::detail
