// Orders and batches: every sample once, whatever the number of replicas, and the same again from a saved position.
#include "data/batches.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/order.h"
#include "tests/data/files.h"

namespace gpipe::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Samples = std::vector<std::int64_t>;

Samples sorted(Samples samples) {
  std::sort(samples.begin(), samples.end());
  return samples;
}

Samples all_of(std::int64_t num_samples) {
  Samples samples(static_cast<std::size_t>(num_samples));
  std::iota(samples.begin(), samples.end(), std::int64_t{0});
  return samples;
}

Samples epoch_samples(Batches& batches) {
  Samples samples;
  for (std::int64_t batch = 0; batch < batches.num_batches(); ++batch) {
    const Batch next = batches.next();
    samples.insert(samples.end(), next.samples.begin(), next.samples.end());
  }
  return samples;
}

std::vector<std::int64_t> random_lengths(std::size_t num, std::int64_t longest) {
  std::mt19937 random(7);
  std::vector<std::int64_t> lengths(num);
  for (std::int64_t& length : lengths) length = 1 + static_cast<std::int64_t>(random()) % longest;
  return lengths;
}

template <typename Make>
std::string argument_refusal(const Make& make) {
  try {
    make();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Order, IsAPermutationThatDependsOnSeedAndEpochOnly) {
  const Samples order = shuffled_order(1000, 1, 0);
  EXPECT_EQ(sorted(order), all_of(1000));
  EXPECT_EQ(order, shuffled_order(1000, 1, 0));
  EXPECT_NE(order, shuffled_order(1000, 2, 0));
  EXPECT_NE(order, shuffled_order(1000, 1, 1));
  EXPECT_NE(shuffled_order(1000, 1, 0), shuffled_order(1000, 0, 1));
  EXPECT_TRUE(shuffled_order(0, 1, 0).empty());
}

TEST(Order, IsTheSameOnEveryMachine) {
  EXPECT_THAT(shuffled_order(8, 1, 0), ElementsAre(0, 5, 2, 1, 7, 6, 4, 3));
  EXPECT_EQ(Random({}).bits(), 0xe220a8397b1dcdafULL);  // the first of SplitMix64 from state 0
}

TEST(Order, PutsEverySampleEverywhereAboutEquallyOften) {
  constexpr int kRounds = 24000;
  std::map<Samples, int> count;
  for (int round = 0; round < kRounds; ++round) ++count[shuffled_order(4, static_cast<std::uint64_t>(round), 3)];
  EXPECT_EQ(count.size(), 24U);
  for (const auto& [order, times] : count) EXPECT_NEAR(times, kRounds / 24, 150);
}

TEST(Batches, HaveEverySampleOnceInAnEpoch) {
  for (const std::int64_t batch_size : {1, 3, 10, 100, 101, 1000}) {
    Batches batches(100, batch_size, {});
    EXPECT_EQ(batches.num_batches(), (100 + batch_size - 1) / batch_size);
    const Samples first = epoch_samples(batches);
    const Samples second = epoch_samples(batches);
    EXPECT_EQ(sorted(first), all_of(100));
    EXPECT_EQ(sorted(second), all_of(100));
    EXPECT_NE(first, second);
  }
}

TEST(Batches, DropTheLastIfAsked) {
  BatchOptions options;
  options.drop_last = true;
  Batches batches(10, 4, options);
  EXPECT_EQ(batches.num_batches(), 2);
  EXPECT_EQ(epoch_samples(batches).size(), 8U);
  EXPECT_THAT(argument_refusal([&] { Batches(3, 4, options); }), HasSubstr("no batch of 4 in 3 samples"));
  EXPECT_EQ(Batches(4, 4, options).num_batches(), 1);
}

TEST(Batches, KeepTheOrderOfTheSamplesIfNotShuffled) {
  BatchOptions options;
  options.shuffle = false;
  Batches batches(5, 2, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_THAT(batches.next().samples, ElementsAre(0, 1));
    EXPECT_THAT(batches.next().samples, ElementsAre(2, 3));
    const Batch last = batches.next();
    EXPECT_THAT(last.samples, ElementsAre(4));
    EXPECT_EQ(last.position, (Position{epoch, 2}));
    EXPECT_EQ(last.next, (Position{epoch + 1, 0}));
  }
}

TEST(Batches, OfSimilarLengthFitTheBudget) {
  const std::vector<std::int64_t> lengths = random_lengths(2000, 50);
  Batches batches(lengths, {400, 0}, {});
  std::int64_t num_tokens = 0;
  std::int64_t num_padded = 0;
  Samples seen;
  bool is_ascending = true;
  std::int64_t last_longest = 0;
  for (std::int64_t batch = 0; batch < batches.num_batches(); ++batch) {
    const Batch next = batches.next();
    std::int64_t longest = 0;
    for (const std::int64_t sample : next.samples) {
      longest = std::max(longest, lengths[static_cast<std::size_t>(sample)]);
      num_tokens += lengths[static_cast<std::size_t>(sample)];
      seen.push_back(sample);
    }
    EXPECT_LE(longest * next.size, 400);
    num_padded += longest * next.size;
    is_ascending = is_ascending && longest >= last_longest;
    last_longest = longest;
  }
  EXPECT_EQ(sorted(seen), all_of(2000));
  EXPECT_LT(num_padded, 1.03 * static_cast<double>(num_tokens));
  EXPECT_FALSE(is_ascending);  // the batches are shuffled, too
}

TEST(Batches, OfSimilarLengthAreOthersInEveryEpochAndOfTheSameNumber) {
  Batches batches(random_lengths(500, 20), {100, 0}, {});
  const Samples first = epoch_samples(batches);
  EXPECT_EQ(batches.position(), (Position{1, 0}));
  const Samples second = epoch_samples(batches);
  EXPECT_EQ(batches.position(), (Position{2, 0}));
  EXPECT_EQ(sorted(first), sorted(second));
  EXPECT_NE(first, second);
}

TEST(Batches, OfSimilarLengthAreLimitedInNumberAndMultiplesIfAsked) {
  BatchOptions options;
  options.size_multiple = 4;
  options.drop_last = true;
  Batches batches(random_lengths(501, 20), {100, 12}, options);
  Samples seen;
  for (std::int64_t batch = 0; batch < batches.num_batches(); ++batch) {
    const Batch next = batches.next();
    EXPECT_EQ(next.size % 4, 0);
    EXPECT_LE(next.size, 12);
    seen.insert(seen.end(), next.samples.begin(), next.samples.end());
  }
  EXPECT_GE(seen.size(), 501U - 12U);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), seen.size());
}

TEST(Batches, LeaveOverTheShortestSamples) {
  BatchOptions options;
  options.drop_last = true;
  Batches batches({5, 1, 5, 1, 5, 1, 1}, {15, 0}, options);
  EXPECT_EQ(batches.num_batches(), 1);
  EXPECT_THAT(sorted(batches.next().samples), ElementsAre(0, 2, 4));
}

TEST(Batches, AreTheSameWhateverTheNumberOfReplicas) {
  const std::vector<std::int64_t> lengths = random_lengths(300, 20);
  const auto make = [&](bool is_by_tokens, std::int64_t replica, std::int64_t num_replicas) {
    BatchOptions options;
    options.seed = 5;
    options.replica = replica;
    options.num_replicas = num_replicas;
    return is_by_tokens ? Batches(lengths, {100, 0}, options) : Batches(300, 7, options);
  };
  for (const bool is_by_tokens : {false, true}) {
    for (const std::int64_t num_replicas : {1, 2, 3, 8}) {
      Batches whole = make(is_by_tokens, 0, 1);
      std::vector<Batches> parts;
      for (std::int64_t replica = 0; replica < num_replicas; ++replica) {
        parts.push_back(make(is_by_tokens, replica, num_replicas));
      }
      for (std::int64_t batch = 0; batch < 2 * whole.num_batches(); ++batch) {
        const Batch expected = whole.next();
        Samples joined;
        for (Batches& part : parts) {
          const Batch got = part.next();
          EXPECT_EQ(got.size, expected.size);
          EXPECT_EQ(got.position, expected.position);
          EXPECT_LE(static_cast<std::int64_t>(got.samples.size()), (expected.size + num_replicas - 1) / num_replicas);
          joined.insert(joined.end(), got.samples.begin(), got.samples.end());
        }
        EXPECT_EQ(joined, expected.samples);
      }
    }
  }
}

// As gpipe::replica_share does: the first replicas have one more.
TEST(Batches, AreSharedByReplicasAsTheirRowsAre) {
  const auto share = [](std::int64_t batch_size, std::int64_t replica, std::int64_t num_replicas) {
    BatchOptions options;
    options.shuffle = false;
    options.replica = replica;
    options.num_replicas = num_replicas;
    return Batches(batch_size, batch_size, options).next().samples;
  };
  EXPECT_THAT(share(7, 0, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(share(7, 1, 2), ElementsAre(4, 5, 6));
  EXPECT_THAT(share(8, 1, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(share(8, 2, 3), ElementsAre(6, 7));
  EXPECT_THAT(share(2, 2, 3), ElementsAre());
}

TEST(Batches, GoOnExactlyFromASavedPosition) {
  const std::vector<std::int64_t> lengths = random_lengths(100, 20);
  for (const bool is_by_tokens : {false, true}) {
    const auto make = [&] { return is_by_tokens ? Batches(lengths, {100, 0}, {}) : Batches(100, 7, {}); };
    Batches batches = make();
    for (int step = 0; step < 40; ++step) {
      const Batch done = batches.next();
      EXPECT_EQ(done.next, batches.position());
      Batches again = make();
      again.seek(parse_position(to_json(done.next)));
      Batches ahead = batches;
      for (int more = 0; more < 20; ++more) {
        const Batch expected = ahead.next();
        const Batch got = again.next();
        ASSERT_EQ(got.samples, expected.samples);
        ASSERT_EQ(got.position, expected.position);
      }
    }
  }
}

TEST(Batches, RefuseAPositionThatIsNotTheirs) {
  Batches batches(10, 3, {});
  for (const Position position : {Position{0, 4}, Position{-1, 0}, Position{0, -1}}) {
    EXPECT_THAT(argument_refusal([&] { batches.seek(position); }), HasSubstr("an epoch has 4 batches"));
  }
  batches.seek({1000000, 3});
  EXPECT_EQ(batches.next().size, 1);
}

TEST(Batches, RefuseArgumentsOutsideTheirDomain) {
  EXPECT_THAT(argument_refusal([] { Batches(0, 1, {}); }), HasSubstr("num_samples is 0; expected at least 1"));
  EXPECT_THAT(argument_refusal([] { Batches(1, 0, {}); }), HasSubstr("batch_size is 0"));
  EXPECT_THAT(argument_refusal([] {
                Batches(std::vector<std::int64_t>{}, TokenBudget{8, 0}, {});
              }),
              HasSubstr("number of samples is 0"));
  EXPECT_THAT(argument_refusal([] {
                Batches({1, 9}, TokenBudget{8, 0}, {});
              }),
              AllOf(HasSubstr("sample 1 has 9 tokens; expected 1 to 8"), HasSubstr("raise max_tokens")));
  EXPECT_THAT(argument_refusal([] { Batches({1, 0}, TokenBudget{8, 0}, {}); }), HasSubstr("sample 1 has 0 tokens"));
  BatchOptions options;
  options.replica = 2;
  options.num_replicas = 2;
  EXPECT_THAT(argument_refusal([&] { Batches(1, 1, options); }), HasSubstr("replica is 2; expected 0 to 1"));
  options = {};
  options.size_multiple = 4;
  EXPECT_THAT(argument_refusal([&] { Batches({3}, TokenBudget{8, 0}, options); }), HasSubstr("sample 0 has 3 tokens"));
  EXPECT_THAT(argument_refusal([&] { Batches({1}, TokenBudget{8, 3}, options); }), HasSubstr("max_samples is 3"));
}

TEST(Position, IsReadFromItsJsonOrRefused) {
  EXPECT_EQ(to_json(Position{3, 17}), R"({"epoch": 3, "batch": 17})");
  EXPECT_EQ(parse_position(R"({"batch":17,"epoch":9223372036854775807})"), (Position{INT64_MAX, 17}));
  for (const char* json :
       {"", "[]", "3", "{}", R"({"epoch": 3})", R"({"epoch": -1, "batch": 0})", R"({"epoch": 1.5, "batch": 0})",
        R"({"epoch": "1", "batch": 0})", R"({"epoch": 18446744073709551615, "batch": 0})",
        R"({"epoch": 1, "batch": 0, "x": 1})", R"({"epoch": 1, "batch": 0)"}) {
    EXPECT_THAT(refusal([&] { parse_position(json); }), HasSubstr("position: ")) << json;
  }
}

}  // namespace
}  // namespace gpipe::data
