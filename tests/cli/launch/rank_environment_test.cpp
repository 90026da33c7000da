#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/launch/launch.h"
#include "gpipe/launch/world.h"

namespace gpipe::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;

Job make_job() {
  Job job;
  job.num_ranks = 6;
  job.first_rank = 3;
  job.num_local_ranks = 3;
  job.num_replicas = 2;
  job.host = "beta";
  job.master_address = "alpha";
  job.master_port = 4000;
  job.network_interface = "eth0";
  job.secret = "hush";
  job.timeout_seconds = 2.5;
  return job;
}

World world_of(const std::vector<std::string>& environment) {
  return world_from([&](std::string_view name) -> std::optional<std::string> {
    for (const std::string& entry : environment) {
      if (entry.substr(0, entry.find('=')) == name) return entry.substr(entry.find('=') + 1);
    }
    return std::nullopt;
  });
}

TEST(RankEnvironment, IsTheWorldOfTheJob) {
  const World world = world_of(rank_environment(make_job(), 1, {}));
  EXPECT_EQ(world.launcher, Launcher::kGpipe);
  EXPECT_EQ(world.rank, 4);
  EXPECT_EQ(world.size, 6);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 3);
  EXPECT_EQ(world.num_replicas, 2);
  EXPECT_EQ(world.host, "beta");
  EXPECT_EQ(world.master_address, "alpha");
  EXPECT_EQ(world.master_port, 4000);
  EXPECT_EQ(world.network_interface, "eth0");
  EXPECT_EQ(world.secret, "hush");
  EXPECT_EQ(world.timeout_seconds, 2.5);
}

TEST(RankEnvironment, IsTheSameWorldForProgramsThatKnowTorchrun) {
  std::vector<std::string> torchrun;
  for (const std::string& entry : rank_environment(make_job(), 1, {})) {
    if (entry.compare(0, 6, "GPIPE_") != 0) torchrun.push_back(entry);
  }
  const World world = world_of(torchrun);
  EXPECT_EQ(world.launcher, Launcher::kTorchrun);
  EXPECT_EQ(world.rank, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 3);
  EXPECT_EQ(world.master_port, 4000);
}

TEST(RankEnvironment, KeepsWhatIsInheritedButForWhatItSets) {
  const std::vector<std::string> environment =
      rank_environment(make_job(), 0, {"PATH=/bin", "RANK=77", "GPIPE_RANK=77", "GPIPE_RANKS=1", "odd"});
  EXPECT_THAT(environment, Contains("PATH=/bin"));
  EXPECT_THAT(environment, Contains("GPIPE_RANKS=1"));
  EXPECT_THAT(environment, Contains("RANK=3"));
  EXPECT_THAT(environment, Not(Contains("RANK=77")));
  EXPECT_THAT(environment, Not(Contains("GPIPE_RANK=77")));
}

TEST(RankEnvironment, LeavesWhatTheJobDoesNotSayToTheUser) {
  Job job = make_job();
  job.num_replicas.reset();
  job.timeout_seconds.reset();
  job.network_interface.clear();
  const World world =
      world_of(rank_environment(job, 0, {"GPIPE_REPLICAS=3", "GPIPE_TIMEOUT=7", "GPIPE_INTERFACE=ib0"}));
  EXPECT_EQ(world.num_replicas, 3);
  EXPECT_EQ(world.timeout_seconds, 7);
  EXPECT_EQ(world.network_interface, "ib0");
}

}  // namespace
}  // namespace gpipe::cli
