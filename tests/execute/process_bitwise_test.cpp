// The first promise over processes: the same bits as the plain model, and so as threads, for a third of the grid.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "gpipe/launch/world.h"
#include "gpipe/schedule/registry.h"
#include "gpipe/transport/c10d/peers.h"
#include "tests/execute/rank_processes.h"
#include "tests/execute/training.h"
#include "tests/model/same_bits.h"

namespace gpipe::test {
namespace {

struct Case {
  const char* schedule;
  Recompute recompute;
  std::int64_t num_samples;
  bool balance;  // else by profiling
};

constexpr Case kCases[] = {{"gpipe", Recompute::kAlways, 16, true},
                           {"1f1b", Recompute::kNever, 13, true},
                           {"interleaved", Recompute::kExceptLast, 13, true},
                           {"hanayo", Recompute::kNever, 13, true},
                           {"1f1b", Recompute::kExceptLast, 3, true},
                           {"1f1b", Recompute::kNever, 13, false},
                           {"zb-h1", Recompute::kNever, 13, true},
                           {"zb-h2", Recompute::kAlways, 16, true},
                           {"zb-v", Recompute::kExceptLast, 13, true},
                           {"v-half", Recompute::kNever, 13, true},
                           {"v-min", Recompute::kAlways, 16, true},
                           {"dualpipe-v", Recompute::kNever, 3, true}};

// Names of the parameters and buffers of the layers that this rank runs.
std::set<std::string> own_names(const LayerChain& chain, const std::vector<int>& balance,
                                const std::vector<int>& rank_of_stage, int rank, const Trained& all) {
  std::set<std::string> names;
  int layer = 0;
  for (std::size_t stage = 0; stage < balance.size(); ++stage) {
    for (int count = balance[stage]; count > 0; --count, ++layer) {
      if (rank_of_stage[stage] != rank) continue;
      for (const auto& [name, tensor] : all.tensors) {
        if (name.rfind(chain.name(layer) + ".", 0) == 0) names.insert(name);
      }
    }
  }
  return names;
}

// The processes of the test below.
const Program kGrid("Grid", [] {
  at::set_num_threads(1);
  const auto peers = std::make_shared<Peers>(read_world());
  const World& world = peers->world();
  for (const char* name : {"mlp", "cnn", "transformer", "unet", "padded"}) {
    const TestModel model = make_model(name);
    std::map<std::int64_t, Trained> plain;
    for (const Case& tried : kCases) {
      SCOPED_TRACE(testing::Message() << name << ", " << tried.num_samples << " samples, " << tried.schedule
                                      << ", recompute " << gpipe::name(tried.recompute) << ", balance "
                                      << tried.balance);
      if (plain.count(tried.num_samples) == 0) plain[tried.num_samples] = train_plainly(model, tried.num_samples);
      const Trained& expected = plain[tried.num_samples];
      const Schedule schedule = make_schedule(tried.schedule, world.size, kNumMicroBatches);
      std::vector<int> balance = even_balance(model.chain.size(), schedule.num_stages);
      PipelineOptions options = PipelineOptions(world.size)
                                    .num_micro_batches(kNumMicroBatches)
                                    .schedule(tried.schedule)
                                    .recompute(tried.recompute)
                                    .peers(peers);
      if (tried.balance) options.balance(balance);
      const Trained got = train_pipelined(model, tried.num_samples, options, &balance);
      std::set<std::string> names = own_names(model.chain, balance, schedule.worker_of_stage, world.rank, expected);
      for (int step = 0; step < kNumSteps; ++step) names.insert("loss" + std::to_string(step));
      std::set<std::string> got_names;
      for (const auto& [key, tensor] : got.tensors) {
        got_names.insert(key);
        ASSERT_TRUE(expected.tensors.count(key)) << key;
        EXPECT_TRUE(same_bits(tensor, expected.tensors.at(key))) << key;
      }
      EXPECT_EQ(got_names, names);
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  }
  peers->leave_together();
});

// The processes of the second test below: the schedule is searched by one of them, for all.
const Program kSearched("Searched", [] {
  at::set_num_threads(1);
  const auto peers = std::make_shared<Peers>(read_world());
  for (const char* name : {"transformer", "unet"}) {
    SCOPED_TRACE(name);
    const TestModel model = make_model(name);
    const Trained expected = train_plainly(model, 13);
    PipelineOptions options(peers->world().size);
    options.num_micro_batches(kNumMicroBatches).schedule("search").search_seconds(0.05).peers(peers);
    const Trained got = train_pipelined(model, 13, options);
    EXPECT_GT(got.tensors.size(), std::size_t{kNumSteps});
    for (const auto& [key, tensor] : got.tensors) {
      ASSERT_TRUE(expected.tensors.count(key)) << key;
      EXPECT_TRUE(same_bits(tensor, expected.tensors.at(key))) << key;
    }
  }
  peers->leave_together();
});

class ProcessBitwiseTest : public ::testing::TestWithParam<int> {};

TEST_P(ProcessBitwiseTest, ProcessesTrainAsThePlainModelDoes) {
  RankProcesses ranks(GetParam(), "Grid", 30);
  for (int rank = 0; rank < GetParam(); ++rank) {
    EXPECT_EQ(ranks.wait(rank, 100), 0) << "rank " << rank << ": " << ranks.output(rank);
  }
}

TEST(ProcessSearchTest, ProcessesTrainASearchedScheduleAsThePlainModelDoes) {
  RankProcesses ranks(3, "Searched", 30);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.wait(rank, 100), 0) << "rank " << rank << ": " << ranks.output(rank);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessBitwiseTest, ::testing::Values(2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param) + "Processes"; });

}  // namespace
}  // namespace gpipe::test
