// What a profile has decided, as text for other ranks, and text that is none.
#include "gpipe/execute/cut/chosen_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gpipe/error.h"
#include "gpipe/transport/c10d/fingerprint.h"

namespace gpipe {
namespace {

ChosenStages some_stages() {
  ChosenStages chosen;
  chosen.layers_per_stage = {2, 1};
  chosen.recompute_by_stage = {Recompute::kAlways, Recompute::kNever};
  chosen.rematerialization = {parse_rematerialization("0-1"), {}};
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

TEST(ChosenStages, ComeBackFromTheirText) {
  const ChosenStages chosen = some_stages();
  const std::string text = encode(chosen);
  const ChosenStages again = decode_chosen_stages(text);
  EXPECT_EQ(again.layers_per_stage, chosen.layers_per_stage);
  EXPECT_EQ(again.recompute_by_stage, chosen.recompute_by_stage);
  EXPECT_EQ(again.profile.skips.size(), 2U);
  EXPECT_EQ(encode(again), text);
}

TEST(ChosenStages, OfTextThatIsNoneAreRefused) {
  const Fingerprint profile = {decode_fingerprint(encode(some_stages())).at(6)};
  ASSERT_EQ(profile.front().first, "profile");
  const std::vector<Fingerprint> malformed = {
      {{"from", "0"}},  // of no skip
      {{"bytes", "0"}},
      {profile[0], {"skip", "s"}},
      {profile[0], {"skip", "s"}, {"to", "1"}, {"from", "0"}, {"bytes", "1"}},
      {profile[0], {"skip", "s"}, {"from", "0"}, {"to", "1"}},
      {profile[0], {"skip", "s"}, {"from", "0"}, {"to", "3"}, {"bytes", "1"}},  // there are three layers
      {profile[0], {"skip", "s"}, {"from", "2"}, {"to", "1"}, {"bytes", "1"}},  // backwards
      {profile[0], {"skip", "s"}, {"from", "0"}, {"to", "1"}, {"bytes", "-1"}},
      {{"skip", "s"}, {"from", "0"}, {"to", "1"}, {"bytes", "1"}},  // of no profile
      {{"layers", ""}},
      {{"layers", "two"}},
      {{"layers", "2 "}},
      {{"layers", "2x"}},
      {{"layers", "0"}},
      {{"layers", "-1"}},
      {{"layers", "2147483648"}},
      {{"layers", "99999999999999999999"}},
      {{"recompute", "sometimes"}},
      {{"rematerialization", "3-1"}},
      {{"profile", "{}"}},
      {{"something", "else"}}};
  for (const Fingerprint& entries : malformed) {
    EXPECT_THROW(decode_chosen_stages(encode(entries)), Error) << entries.back().first << " " << entries.back().second;
  }
  EXPECT_THROW(decode_chosen_stages("6:layers1"), Error);
  EXPECT_THROW(decode_chosen_stages("99:layers1:2"), Error);
}

TEST(ChosenStages, OfDamagedTextAreRefusedOrOthers) {
  const std::string whole = encode(some_stages());
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
          text[place] = "0123456789:-"[random() % 12];
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
      const ChosenStages decoded = decode_chosen_stages(text);
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
}  // namespace gpipe
