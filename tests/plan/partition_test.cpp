// What the partition counts, how it breaks ties and what it refuses.
#include "gpipe/plan/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

Profile chain(const std::vector<double>& forward_seconds) {
  Profile profile;
  for (const double seconds : forward_seconds) {
    LayerProfile layer;
    layer.name = "layer" + std::to_string(profile.layers.size());
    layer.forward_seconds = seconds;
    profile.layers.push_back(layer);
  }
  return profile;
}

PartitionOptions options_for(int num_stages, int num_micro_batches = 1, Objective objective = Objective::kMakespan) {
  PartitionOptions options;
  options.num_stages = num_stages;
  options.num_micro_batches = num_micro_batches;
  options.objective = objective;
  return options;
}

std::vector<int> sizes(const Partition& partition) {
  std::vector<int> result;
  for (const PartitionStage& stage : partition.stages) result.push_back(stage.num_layers);
  return result;
}

template <typename Error = InvalidArgument>
std::string refusal(const Profile& profile, const PartitionOptions& options) {
  try {
    partition(profile, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Partition, EqualLayersAreCutEvenlyWhateverTheirSecondsRoundTo) {
  for (const double seconds : {1.0, 0.1, 1e-7, 3.3e200, 5e-324}) {
    const Profile profile = chain(std::vector<double>(10, seconds));
    EXPECT_THAT(sizes(partition(profile, options_for(4, 8))), ElementsAre(2, 2, 3, 3)) << seconds;
    EXPECT_THAT(sizes(partition(profile, options_for(4, 8, Objective::kSlowestStage))), ElementsAre(2, 2, 3, 3))
        << seconds;
  }
}

// torchgpipe's balancer is up to three times worse on such chains.
TEST(Partition, AHeavyHeadStandsAlone) {
  std::vector<double> seconds(12, 1);
  seconds.back() = 6;
  EXPECT_THAT(sizes(partition(chain(seconds), options_for(3, 32))), ElementsAre(5, 6, 1));
}

TEST(Partition, LayersThatCostNothingStillMakeStages) {
  EXPECT_THAT(sizes(partition(chain({0, 0, 0, 0}), options_for(3, 4))), ElementsAre(1, 1, 2));
  EXPECT_THAT(sizes(partition(chain({0, 5, 0, 0, 5, 0}), options_for(2, 4))), ElementsAre(2, 4));
}

TEST(Partition, TheSlowestStageCountsMoreTheMoreMicroBatchesThereAre) {
  // Cutting in the middle balances but sends 2 bytes each way; cutting behind layer 0 sends nothing.
  Profile profile = chain({2, 8, 10});
  profile.layers[1].output_bytes = 2;
  PartitionOptions options = options_for(2, 1);
  options.link.bytes_per_second = 1;
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(1, 2));  // 2 + 18 against 12 + 12
  options.num_micro_batches = 2;
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(2, 1));  // 20 + 18 against 24 + 12
  const Partition found = partition(profile, options);
  EXPECT_EQ(found.slowest_seconds, 12);
  EXPECT_EQ(found.makespan_seconds, 36);
}

TEST(Partition, CountsComputeMessagesAndBytesAsDocumented) {
  Profile profile = chain({1, 2, 4, 8});
  for (LayerProfile& layer : profile.layers) {
    layer.backward_seconds = 2 * layer.forward_seconds;
    layer.parameter_bytes = 10;
    layer.activation_bytes = 100;
    layer.output_bytes = 1000;
  }
  profile.skips = {{"over", 0, 3, 500}, {"inside", 1, 2, 7}, {"in place", 2, 2, 9}};
  PartitionOptions options = options_for(3, 5);
  options.recompute = true;
  options.link.latency_seconds = 0.5;
  options.link.bytes_per_second = 1000;
  options.workers = workers_of_speed({1, 2, 1});
  options.optimizer_slots = 1;
  options.live = {{{3, 0}}, {{1, 2}, {0, 4}}, {{1, 1}}};
  options.memory_limit_bytes = 4060;  // [1, 3) needs all of it
  const Partition found = partition(profile, options);
  ASSERT_THAT(sizes(found), ElementsAre(1, 2, 1));
  EXPECT_EQ(found.stages[0].seconds, 4 + 1.5 + 1.0);         // to the next, and the skip
  EXPECT_EQ(found.stages[1].seconds, 24.0 / 2 + 1.5 + 1.5);  // the skip passes over it
  EXPECT_EQ(found.stages[2].seconds, 32 + 1.5 + 1.0);
  EXPECT_EQ(found.stages[0].bytes, 30 + 3 * 100);
  EXPECT_EQ(found.stages[1].bytes, 60 + 4 * 1000);
  EXPECT_EQ(found.stages[2].bytes, 30 + 100 + 2 * 1500);
  EXPECT_EQ(found.slowest_seconds, 34.5);
  EXPECT_EQ(found.makespan_seconds, 6.5 + 15 + 34.5 + 4 * 34.5);
}

TEST(Partition, ASkipInsideAStageCostsNothingSoStagesAreCutAroundIt) {
  Profile profile = chain({3, 3, 3, 3});
  profile.skips = {{"residual", 1, 2, 100}};
  PartitionOptions options = options_for(2, 1);
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(2, 2));
  options.link.bytes_per_second = 1;
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(1, 3));
}

TEST(Partition, AMemoryLimitMovesTheCut) {
  Profile profile = chain({1, 1, 1, 1, 1, 1});
  for (LayerProfile& layer : profile.layers) layer.activation_bytes = 10;
  PartitionOptions options = options_for(2, 8);
  options.live = {{{2, 0}}, {{1, 0}}};
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(3, 3));
  options.memory_limit_bytes = 40;
  EXPECT_THAT(sizes(partition(profile, options)), ElementsAre(2, 4));
}

TEST(Partition, BytesEndAtTheLargestNumberInsteadOfWrappingAround) {
  Profile profile = chain({1, 1});
  profile.layers[0].parameter_bytes = kMaxBytes / 2;
  profile.layers[1].activation_bytes = kMaxBytes / 2;
  PartitionOptions options = options_for(2);
  options.live = {{{0, 0}}, {{1000000, 0}}};
  const Partition found = partition(profile, options);
  EXPECT_EQ(found.stages[0].bytes, kMaxBytes);
  EXPECT_EQ(found.stages[1].bytes, kMaxBytes);
  options.memory_limit_bytes = kMaxBytes - 1;
  EXPECT_THROW(partition(profile, options), InfeasibleError);
}

TEST(Partition, SaysHowManyBytesAreMissingAndHowManyStagesWouldFit) {
  Profile profile = chain({1, 1, 1, 1, 1, 1});
  for (LayerProfile& layer : profile.layers) layer.parameter_bytes = 1 << 20;
  PartitionOptions options = options_for(2);
  options.optimizer_slots = 0;
  options.memory_limit_bytes = 5 << 20;
  try {
    partition(profile, options);
    FAIL() << "three layers of 2 MiB do not fit 5 MiB";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.missing_bytes(), 1 << 20);
    EXPECT_EQ(error.smallest_num_stages(), 3);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("6 layers into 2 stages"), HasSubstr("5 MiB (5242880 bytes)"),
                                    HasSubstr("lacks 1 MiB (1048576 bytes)"), HasSubstr("that fits is 3")));
  }
  options.memory_limit_bytes = (2 << 20) - 1;
  try {
    partition(profile, options);
    FAIL() << "one layer of 2 MiB does not fit less";
  } catch (const InfeasibleError& error) {
    EXPECT_EQ(error.missing_bytes(), (4 << 20) + 1);
    EXPECT_EQ(error.smallest_num_stages(), 0);
    EXPECT_THAT(error.what(), HasSubstr("no number of stages was found that fits"));
  }
}

TEST(Partition, WithoutLiveForOtherNumbersOfStagesHoldWhatTheLastOnesDo) {
  Profile profile = chain({1, 1, 1, 1, 1});
  for (LayerProfile& layer : profile.layers) layer.activation_bytes = 10;
  PartitionOptions options = options_for(2);
  options.live = {{{2, 0}}, {{1, 0}}};
  options.memory_limit_bytes = 20;  // a layer of two micro-batches, or two layers of one
  const auto smallest = [&] {
    try {
      partition(profile, options);
    } catch (const InfeasibleError& error) {
      return error.smallest_num_stages();
    }
    return -1;
  };
  EXPECT_EQ(smallest(), 4);  // 1 + 1 + 1 + 2 layers
  options.live_for = [](int num_stages) { return std::vector<std::vector<Live>>(num_stages, {Live{2, 0}}); };
  EXPECT_EQ(smallest(), 5);
  options.live_for = [](int) { return std::vector<std::vector<Live>>(); };
  EXPECT_EQ(smallest(), 0);
}

TEST(Partition, StagesThatHoldNothingNeedRoomForTheirWeightsOnly) {
  Profile profile = chain({1, 1, 1, 1});
  for (LayerProfile& layer : profile.layers) {
    layer.parameter_bytes = 1;
    layer.activation_bytes = 1000;
  }
  PartitionOptions options = options_for(1);
  options.live = {{}};
  options.live_for = [](int num_stages) { return std::vector<std::vector<Live>>(num_stages); };
  options.memory_limit_bytes = 8;
  EXPECT_THAT(refusal<InfeasibleError>(profile, options), HasSubstr("that fits is 2"));
}

TEST(Partition, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(refusal(chain({1, 1, 1}), options_for(4)),
              AllOf(HasSubstr("4 stages"), HasSubstr("the profile has 3"), HasSubstr("at most 3 stages")));
}

TEST(Partition, RefusesCountsOutOfRange) {
  const Profile profile = chain({1, 1, 1});
  EXPECT_THAT(refusal(Profile{}, options_for(1)), HasSubstr("no layers"));
  EXPECT_THAT(refusal(profile, options_for(0)), HasSubstr("num_stages is 0"));
  EXPECT_THAT(refusal(profile, options_for(1, 0)), HasSubstr("num_micro_batches is 0"));
  EXPECT_THAT(refusal(chain(std::vector<double>(kMaxPartitionLayers + 1, 1)), options_for(2)),
              HasSubstr("join neighbours"));
  PartitionOptions options = options_for(2);
  options.optimizer_slots = -1;
  EXPECT_THAT(refusal(profile, options), HasSubstr("optimizer_slots is -1"));
  options = options_for(2);
  options.live = {{{1, 0}}};
  EXPECT_THAT(refusal(profile, options), HasSubstr("live has 1 entries for 2 stages"));
  options = options_for(2);
  options.workers = workers_of_speed({1, 1, 1});
  EXPECT_THAT(refusal(profile, options), HasSubstr("workers has 3 entries for 2 stages"));
  options = options_for(2);
  options.recompute_share = {1};
  EXPECT_THAT(refusal(profile, options), HasSubstr("recompute_share has 1 entries for 2 stages"));
}

TEST(Partition, RefusesValuesOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Profile profile = chain({1, 1, 1});
  const auto refuse = [&](auto&& change) {
    PartitionOptions options = options_for(2);
    change(options);
    return refusal(profile, options);
  };
  EXPECT_THAT(refuse([](PartitionOptions& options) {
                options.workers = workers_of_speed({1, 0});
              }),
              HasSubstr("workers[1].speed is 0"));
  EXPECT_THAT(refuse([&](PartitionOptions& options) {
                options.workers = workers_of_speed({1, nan});
              }),
              HasSubstr("workers[1].speed is nan"));
  EXPECT_THAT(refuse([](PartitionOptions& options) {
                options.workers = workers_of_speed({1, 5e-324});
              }),
              HasSubstr("too many seconds"));
  EXPECT_THAT(refuse([](PartitionOptions& options) {
                options.recompute_share = {1, 1.5};
              }),
              HasSubstr("recompute_share is 1.5"));
  EXPECT_THAT(refuse([](PartitionOptions& options) { options.link.latency_seconds = -1; }),
              HasSubstr("latency_seconds is -1"));
  EXPECT_THAT(refuse([&](PartitionOptions& options) { options.link.bytes_per_second = nan; }),
              HasSubstr("bytes_per_second is nan"));
  EXPECT_THAT(refuse([](PartitionOptions& options) { options.link.bytes_per_second = 0; }),
              HasSubstr("bytes_per_second is 0"));
  EXPECT_THAT(refuse([](PartitionOptions& options) { options.memory_limit_bytes = -1; }),
              HasSubstr("memory_limit_bytes is -1"));
  const auto refuse_worker = [&](const WorkerCosts& worker) {
    return refuse([&](PartitionOptions& options) { options.workers = {{}, worker}; });
  };
  EXPECT_THAT(refuse_worker({1, -1, {}}), HasSubstr("workers[1].memory_limit_bytes is -1"));
  EXPECT_THAT(refuse_worker({1, {}, LinkCosts{-1, 1}}), HasSubstr("workers[1].link_to_next.latency_seconds is -1"));
  EXPECT_THAT(refuse_worker({1, {}, LinkCosts{0, 0}}), HasSubstr("workers[1].link_to_next.bytes_per_second is 0"));
  EXPECT_THAT(refuse([](PartitionOptions& options) { options.live = {{{1, 0}}, {{1, -2}}}; }), HasSubstr("-2 inputs"));
}

}  // namespace
}  // namespace gpipe
