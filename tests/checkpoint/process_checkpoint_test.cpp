// Resume anywhere, over processes: what K processes or threads have saved goes on, bit for bit, on any other number of
// either.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "gpipe/checkpoint/checkpoint_files.h"
#include "gpipe/launch/world.h"
#include "gpipe/transport/c10d/peers.h"
#include "tests/checkpoint/training.h"
#include "tests/execute/rank_processes.h"
#include "tests/model/same_bits.h"
#include "tests/os/comes_true.h"

namespace gpipe::test {
namespace {

constexpr const char* kOptimizers[] = {"sgd", "adam", "adamw", "rmsprop"};
constexpr const char* kFolder = "GPIPE_TEST_FOLDER";

std::string folder_of(const std::string& folder, const char* kind, int size, const std::string& optimizer) {
  return fmt::format("{}/{}-{}-{}", folder, kind, size, optimizer);
}

bool wait_for_checkpoint(const std::string& folder) {
  return comes_true([&] { return !latest_checkpoint(folder).empty(); }, 100);
}

// What this rank has is what the checkpoint says.
void expect_part_of(const std::string& checkpoint, Training& training) {
  const Manifest manifest = read_manifest(checkpoint);
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : load_model(checkpoint).tensors) expected.insert(item);
  for (const auto& item : detail::load_slots(checkpoint, manifest)) expected.insert(item);
  const CheckpointSnapshot own = snapshot_of(training.pipeline, *training.optimizer, training.state());
  EXPECT_EQ(own.shards.size(), 1U);
  for (const StageShard& shard : own.shards) {
    for (const NamedTensors& list : {shard.weights, shard.slots}) {
      for (const auto& [name, tensor] : list) {
        ASSERT_EQ(expected.count(name), 1U) << name;
        EXPECT_TRUE(same_bits(tensor, expected[name])) << name;
      }
    }
  }
  EXPECT_EQ(own.manifest.pipeline_step, manifest.pipeline_step);
  for (std::size_t group = 0; group < manifest.groups.size(); ++group) {
    EXPECT_EQ(own.manifest.groups[group].options, manifest.groups[group].options);
  }
}

// The processes of the test below.
const Program kCheckpoints("Checkpoints", [] {
  at::set_num_threads(1);
  const std::string folder = std::getenv(kFolder);
  const auto peers = std::make_shared<Peers>(read_world());
  const int size = peers->world().size;
  const auto setup_for = [&](const std::string& optimizer) {
    TrainingSetup setup{size, optimizer};
    setup.peers = peers;
    return setup;
  };
  for (const char* optimizer : kOptimizers) {
    Training training(setup_for(optimizer));
    training.steps(5);
    CheckpointWriter writer(folder_of(folder, "processes", size, optimizer));
    writer.save(training.pipeline, *training.optimizer, training.state());
    training.step();  // while it is written
    ASSERT_TRUE(writer.wait().has_value());
  }
  for (const char* optimizer : kOptimizers) {
    for (int before = 2; before <= 4; ++before) {
      ASSERT_TRUE(wait_for_checkpoint(folder_of(folder, "processes", before, optimizer)));
    }
    const std::string straight = latest_checkpoint(folder_of(folder, "straight", 1, optimizer));
    for (const char* kind : {"threads", "processes"}) {
      for (int before = kind == std::string("threads") ? 1 : 2; before <= 4; ++before) {
        SCOPED_TRACE(fmt::format("{}: {} {} -> {} processes", optimizer, before, kind, size));
        Training training(setup_for(optimizer));
        EXPECT_EQ(training.load(folder_of(folder, kind, before, optimizer)).step, 5);
        training.steps(5);
        expect_part_of(straight, training);
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  }
  peers->leave_together();
});

class ProcessCheckpointTest : public CheckpointTest {};

TEST_F(ProcessCheckpointTest, GoesFromAnyNumberOfThreadsOrProcessesToAnyOther) {
  for (const char* optimizer : kOptimizers) {
    Training straight({1, optimizer});
    straight.steps(10);
    straight.save(folder_of(folder_, "straight", 1, optimizer));
    for (int size = 1; size <= 4; ++size) {
      Training training({size, optimizer});
      training.steps(5);
      training.save(folder_of(folder_, "threads", size, optimizer));
    }
  }
  setenv(kFolder, folder_.c_str(), 1);
  {
    RankProcesses two(2, "Checkpoints", 60);
    RankProcesses three(3, "Checkpoints", 60);
    RankProcesses four(4, "Checkpoints", 60);
    for (RankProcesses* world : {&two, &three, &four}) {
      for (int rank = 0; rank < (world == &two ? 2 : world == &three ? 3 : 4); ++rank) {
        ASSERT_EQ(world->wait(rank, 200), 0) << "rank " << rank << ": " << world->output(rank);
      }
    }
  }
  unsetenv(kFolder);
  for (const char* optimizer : kOptimizers) {
    Training straight({1, optimizer});
    straight.load(folder_of(folder_, "straight", 1, optimizer));
    for (int before = 2; before <= 4; ++before) {
      for (int after = 1; after <= 4; ++after) {
        Training training({after, optimizer});
        training.load(folder_of(folder_, "processes", before, optimizer));
        training.steps(5);
        expect_same(training, straight, fmt::format("{}: {} processes -> {} threads", optimizer, before, after));
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::test
