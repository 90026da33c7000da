#include "gpipe/launch/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gpipe/error.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::map<std::string, std::string, std::less<>>;

World world_of(const Environment& environment) {
  return world_from([&](std::string_view name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

Environment merged(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

const Environment kGpipe = {{"GPIPE_RANK", "5"},
                            {"GPIPE_WORLD_SIZE", "6"},
                            {"GPIPE_LOCAL_RANK", "2"},
                            {"GPIPE_LOCAL_WORLD_SIZE", "3"},
                            {"GPIPE_MASTER_ADDR", "alpha"},
                            {"GPIPE_MASTER_PORT", "4000"}};
const Environment kTorchrun = {{"RANK", "1"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"PMIX_NAMESPACE", "prterun-alpha-1234@1"}};
const Environment kMpich = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};
const Environment kSlurm = {{"SLURM_JOB_ID", "4711"},        {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "6"},           {"SLURM_NTASKS", "7"},
                            {"SLURM_LOCALID", "2"},          {"SLURM_NODEID", "1"},
                            {"SLURM_TASKS_PER_NODE", "4,3"}, {"SLURM_NODELIST", "node[03-04]"},
                            {"SLURMD_NODENAME", "node04"}};
const std::vector<Environment> kAll = {kGpipe, kTorchrun, kOpenMpi, kMpich, kSlurm};

// The error that the variables give: `variable` is at fault, and the message has `words`.
void expect_refused(const Environment& environment, const std::string& variable,
                    const std::vector<std::string>& words) {
  try {
    world_of(environment);
    ADD_FAILURE() << "accepted, though " << variable << " is wrong";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.variable(), variable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(variable));
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(World, IsOfOneWithoutALauncher) {
  const World world = world_of({});
  EXPECT_EQ(world.launcher, Launcher::kNone);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.local_rank, 0);
  EXPECT_EQ(world.local_size, 1);
  EXPECT_EQ(world.num_stages(), 1);
  EXPECT_EQ(world.stage(), 0);
  EXPECT_EQ(world.replica(), 0);
  EXPECT_EQ(world.timeout_seconds, 60);
  EXPECT_EQ(world.secret, "");
}

TEST(World, IsOfOneWithOnlyAMeetingPoint) {
  EXPECT_EQ(world_of({{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "1"}, {"LOCAL_RANK", "1"}}).launcher, Launcher::kNone);
}

TEST(World, TakesEmptyValuesForNone) {
  EXPECT_EQ(world_of({{"RANK", ""}, {"WORLD_SIZE", ""}, {"GPIPE_RANK", ""}, {"GPIPE_TIMEOUT", ""}}).launcher,
            Launcher::kNone);
}

TEST(World, ComesFromGpipeLaunch) {
  const World world = world_of(merged(kGpipe, {{"GPIPE_HOST", "beta"}}));
  EXPECT_EQ(world.launcher, Launcher::kGpipe);
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.size, 6);
  EXPECT_EQ(world.local_rank, 2);
  EXPECT_EQ(world.local_size, 3);
  EXPECT_EQ(world.host, "beta");
  EXPECT_EQ(world.master_address, "alpha");
  EXPECT_EQ(world.master_port, 4000);
  EXPECT_EQ(world.network_interface, "");
}

TEST(World, ComesFromTorchrun) {
  const World world = world_of(kTorchrun);
  EXPECT_EQ(world.launcher, Launcher::kTorchrun);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.master_address, "10.0.0.1");
  EXPECT_EQ(world.master_port, 29500);
}

TEST(World, OfTorchrunLeavesThePortToAnAgentThatListensThere) {
  const Environment agent = merged(
      kTorchrun,
      {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "0"}});
  const int port = world_of(agent).master_port;
  EXPECT_NE(port, 29500);
  EXPECT_EQ(world_of(merged(agent, {{"RANK", "0"}, {"LOCAL_RANK", "0"}})).master_port, port);
  EXPECT_NE(world_of(merged(agent, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).master_port, port);
  EXPECT_NE(world_of(merged(agent, {{"TORCHELASTIC_RUN_ID", "17"}})).master_port, port);
  EXPECT_EQ(world_of(merged(agent, {{"GPIPE_MASTER_PORT", "4000"}})).master_port, 4000);
  EXPECT_EQ(world_of(merged(agent, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port, 29500);
}

TEST(World, ComesFromOpenMpiAndMeetsOnTheLoopback) {
  const World world = world_of(kOpenMpi);
  EXPECT_EQ(world.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 3);
  EXPECT_EQ(world.local_size, 4);
  EXPECT_EQ(world.master_address, "127.0.0.1");
  EXPECT_EQ(world.network_interface, "lo");
  EXPECT_GE(world.master_port, 20000);
  EXPECT_LT(world.master_port, 32768);
}

TEST(World, ComesFromMpich) {
  const World world = world_of(kMpich);
  EXPECT_EQ(world.launcher, Launcher::kMpich);
  EXPECT_EQ(world.rank, 2);
  EXPECT_EQ(world.size, 3);
  EXPECT_EQ(world.local_rank, 2);
  EXPECT_EQ(world.local_size, 3);
  EXPECT_EQ(world.master_address, "127.0.0.1");
  EXPECT_EQ(world.master_port, 29500);
}

TEST(World, ComesFromSlurmAndMeetsOnTheFirstNode) {
  const World world = world_of(kSlurm);
  EXPECT_EQ(world.launcher, Launcher::kSlurm);
  EXPECT_EQ(world.rank, 6);
  EXPECT_EQ(world.size, 7);
  EXPECT_EQ(world.local_rank, 2);
  EXPECT_EQ(world.local_size, 3);
  EXPECT_EQ(world.host, "node04");
  EXPECT_EQ(world.master_address, "node03");
  EXPECT_GE(world.master_port, 20000);
  EXPECT_LT(world.master_port, 32768);
}

TEST(World, OfOneSlurmNodeMeetsOnTheLoopback) {
  const World world =
      world_of(merged(without(kSlurm, "SLURM_TASKS_PER_NODE"), {{"SLURM_NODELIST", "node7"}, {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(world.local_size, 7);
  EXPECT_EQ(world.master_address, "127.0.0.1");
}

TEST(World, PrefersTheVariablesOfTheStepToThoseOfTheAllocation) {
  const World world = world_of(merged(
      kSlurm,
      {{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"}, {"SLURM_STEP_NODELIST", "gpu[1-2]"}}));
  EXPECT_EQ(world.size, 16);
  EXPECT_EQ(world.local_size, 8);
  EXPECT_EQ(world.master_address, "gpu1");
}

TEST(World, PortIsTheSameOnEveryRankAndDiffersBetweenJobsAndSteps) {
  const int port = world_of(kSlurm).master_port;
  EXPECT_EQ(
      world_of(merged(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}})).master_port,
      port);
  EXPECT_NE(world_of(merged(kSlurm, {{"SLURM_JOB_ID", "4712"}})).master_port, port);
  EXPECT_NE(world_of(merged(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port, port);
  EXPECT_NE(world_of(merged(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-alpha-1235@1"}})).master_port,
            world_of(kOpenMpi).master_port);
}

TEST(World, TakesTheMeetingPointTheUserGives) {
  for (const Environment& environment : kAll) {
    const World plain = world_of(merged(without(without(environment, "GPIPE_MASTER_ADDR"), "GPIPE_MASTER_PORT"),
                                        {{"MASTER_ADDR", "there"}, {"MASTER_PORT", "77"}}));
    EXPECT_EQ(plain.master_address, "there");
    EXPECT_EQ(plain.master_port, 77);
    const World own = world_of(merged(
        environment,
        {{"GPIPE_MASTER_ADDR", "::1"}, {"GPIPE_MASTER_PORT", "78"}, {"MASTER_ADDR", "there"}, {"MASTER_PORT", "77"}}));
    EXPECT_EQ(own.master_address, "::1");
    EXPECT_EQ(own.master_port, 78);
  }
}

TEST(World, ReadsWhatTheUserWantsWithEveryLauncher) {
  std::vector<Environment> all = kAll;
  all.push_back({});
  for (const Environment& environment : all) {
    const World world = world_of(
        merged(environment, {{"GPIPE_SECRET", "hush"}, {"GPIPE_INTERFACE", "eth0"}, {"GPIPE_TIMEOUT", "2.5"}}));
    EXPECT_EQ(world.secret, "hush");
    EXPECT_EQ(world.network_interface, "eth0");
    EXPECT_EQ(world.timeout_seconds, 2.5);
  }
}

TEST(World, IsReplicasOfConsecutiveStages) {
  for (int rank = 0; rank < 6; ++rank) {
    const World world = world_of({{"RANK", std::to_string(rank)},
                                  {"WORLD_SIZE", "6"},
                                  {"MASTER_ADDR", "localhost"},
                                  {"MASTER_PORT", "1"},
                                  {"GPIPE_REPLICAS", "2"}});
    EXPECT_EQ(world.num_replicas, 2);
    EXPECT_EQ(world.num_stages(), 3);
    EXPECT_EQ(world.stage(), rank % 3);
    EXPECT_EQ(world.replica(), rank / 3);
  }
}

TEST(World, SetByHandIsOnThisHostIfTheMeetingPointIs) {
  const Environment by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};
  const World here = world_of(merged(by_hand, {{"MASTER_ADDR", "127.0.0.1"}}));
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_size, 2);
  const World there = world_of(merged(by_hand, {{"MASTER_ADDR", "10.0.0.1"}}));
  EXPECT_EQ(there.local_rank, 0);
  EXPECT_EQ(there.local_size, 1);
}

TEST(World, ComesFromTheFirstLauncherOfSeveral) {
  const Launcher order[] = {Launcher::kGpipe, Launcher::kTorchrun, Launcher::kOpenMpi, Launcher::kMpich,
                            Launcher::kSlurm};
  for (std::size_t first = 0; first < kAll.size(); ++first) {
    Environment environment;
    for (std::size_t family = first; family < kAll.size(); ++family) environment = merged(environment, kAll[family]);
    EXPECT_EQ(world_of(environment).launcher, order[first]);
  }
}

TEST(World, OfSlurmIsReadInAStepOfSrunOnly) {
  EXPECT_EQ(world_of(without(kSlurm, "SLURM_STEP_ID")).launcher, Launcher::kNone);
  for (const char* own : {"4294967290", "4294967291", "4294967294", "4294967295"}) {
    EXPECT_EQ(world_of(merged(kSlurm, {{"SLURM_STEP_ID", own}})).launcher, Launcher::kNone) << own;
  }
  const World old = world_of(merged(without(kSlurm, "SLURM_STEP_ID"), {{"SLURM_STEPID", "3"}}));
  EXPECT_EQ(old.launcher, Launcher::kSlurm);
}

TEST(World, OfSrunWithPmiComesFromSlurm) {
  const World world = world_of(merged(kSlurm, {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}}));
  EXPECT_EQ(world.launcher, Launcher::kSlurm);
  EXPECT_EQ(world.local_size, 3);
}

TEST(World, RefusesAnIncompleteFamilyNamingWhatIsMissing) {
  const struct {
    Environment environment;
    const char* variable;
    const char* launcher;
  } cases[] = {
      {kGpipe, "GPIPE_RANK", "gpipe launch"},
      {kGpipe, "GPIPE_WORLD_SIZE", "gpipe launch"},
      {kGpipe, "GPIPE_LOCAL_RANK", "gpipe launch"},
      {kGpipe, "GPIPE_LOCAL_WORLD_SIZE", "gpipe launch"},
      {kGpipe, "GPIPE_MASTER_ADDR", "gpipe launch"},
      {kGpipe, "GPIPE_MASTER_PORT", "gpipe launch"},
      {kTorchrun, "RANK", "torchrun"},
      {kTorchrun, "WORLD_SIZE", "torchrun"},
      {kTorchrun, "LOCAL_RANK", "torchrun"},
      {kTorchrun, "LOCAL_WORLD_SIZE", "torchrun"},
      {kTorchrun, "MASTER_ADDR", "torchrun"},
      {kTorchrun, "MASTER_PORT", "torchrun"},
      {kOpenMpi, "OMPI_COMM_WORLD_RANK", "Open MPI"},
      {kOpenMpi, "OMPI_COMM_WORLD_SIZE", "Open MPI"},
      {kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI"},
      {kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI"},
      {kMpich, "PMI_RANK", "MPICH"},
      {kMpich, "PMI_SIZE", "MPICH"},
      {kMpich, "MPI_LOCALRANKID", "MPICH"},
      {kMpich, "MPI_LOCALNRANKS", "MPICH"},
      {kSlurm, "SLURM_PROCID", "Slurm"},
      {kSlurm, "SLURM_NTASKS", "Slurm"},
      {kSlurm, "SLURM_LOCALID", "Slurm"},
      {kSlurm, "SLURM_NODEID", "Slurm"},
      {kSlurm, "SLURM_TASKS_PER_NODE", "Slurm"},
      {kSlurm, "SLURM_NODELIST", "Slurm"},
      {kSlurm, "SLURM_JOB_ID", "Slurm"},
  };
  for (const auto& test : cases) {
    expect_refused(without(test.environment, test.variable), test.variable, {"is missing", test.launcher});
  }
}

TEST(World, RefusesMpiOnSeveralHostsWithoutAMeetingPoint) {
  const Environment hosts =
      merged(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  expect_refused(hosts, "MASTER_ADDR", {"Open MPI", "several hosts"});
  EXPECT_EQ(world_of(merged(hosts, {{"MASTER_ADDR", "alpha"}})).master_address, "alpha");
  expect_refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "MASTER_ADDR", {"MPICH"});
}

TEST(World, RefusesValuesThatCannotBeUsed) {
  const struct {
    Environment environment;
    const char* variable;
    const char* value;
  } cases[] = {
      {kGpipe, "GPIPE_RANK", "one"},
      {kGpipe, "GPIPE_RANK", "-1"},
      {kGpipe, "GPIPE_RANK", "6"},
      {kGpipe, "GPIPE_WORLD_SIZE", "0"},
      {kGpipe, "GPIPE_WORLD_SIZE", "2147483648"},
      {kGpipe, "GPIPE_LOCAL_RANK", "3"},
      {kGpipe, "GPIPE_LOCAL_WORLD_SIZE", "7"},
      {kGpipe, "GPIPE_MASTER_PORT", "65536"},
      {kGpipe, "GPIPE_MASTER_ADDR", "a b"},
      {kTorchrun, "RANK", "4"},
      {kTorchrun, "RANK", "1 "},
      {kTorchrun, "WORLD_SIZE", "4.0"},
      {kTorchrun, "MASTER_PORT", "0"},
      {kTorchrun, "MASTER_ADDR", "http://a"},
      {kOpenMpi, "OMPI_COMM_WORLD_RANK", "4"},
      {kMpich, "PMI_SIZE", "many"},
      {kSlurm, "SLURM_PROCID", "7"},
      {kSlurm, "SLURM_LOCALID", "3"},
      {kSlurm, "SLURM_STEP_ID", "batch"},
      {kSlurm, "SLURM_NODELIST", "node[1-"},
      {kSlurm, "SLURM_TASKS_PER_NODE", "4(x"},
      {kSlurm, "SLURM_TASKS_PER_NODE", "4"},
      {kTorchrun, "GPIPE_REPLICAS", "3"},
      {kTorchrun, "GPIPE_REPLICAS", "0"},
      {{}, "GPIPE_REPLICAS", "2"},
      {{}, "GPIPE_TIMEOUT", "0"},
      {{}, "GPIPE_TIMEOUT", "-5"},
      {{}, "GPIPE_TIMEOUT", "nan"},
      {{}, "GPIPE_TIMEOUT", "1e300"},
      {{}, "GPIPE_TIMEOUT", "60s"},
      {{}, "GPIPE_INTERFACE", "a name that is too long"},
      {{}, "GPIPE_INTERFACE", "../lo"},
  };
  for (const auto& test : cases) {
    expect_refused(merged(test.environment, {{test.variable, test.value}}), test.variable, {});
  }
}

TEST(World, QuotesTheValueItRefuses) {
  expect_refused(merged(kTorchrun, {{"RANK", "x\x1b[31m"}}), "RANK", {"torchrun", "'x?[31m'", "whole number"});
  expect_refused(merged(kTorchrun, {{"RANK", "9"}}), "RANK", {"is 9", "WORLD_SIZE is 4"});
  expect_refused(merged(kTorchrun, {{"GPIPE_REPLICAS", "3"}}), "GPIPE_REPLICAS", {"is 3", "4 ranks"});
}

TEST(World, IsReadFromThisProcess) {
  const Environment environment = {{"GPIPE_RANK", "1"},
                                   {"GPIPE_WORLD_SIZE", "2"},
                                   {"GPIPE_MASTER_ADDR", "127.0.0.1"},
                                   {"GPIPE_MASTER_PORT", "4000"}};
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  const World world = read_world();
  for (const auto& [name, value] : environment) unsetenv(name.c_str());
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_NE(world.host, "");
}

// Random values for random variables: a world whose numbers fit together, or an EnvironmentError; nothing else.
TEST(World, OfRandomVariablesIsSoundOrRefused) {
  std::vector<std::string> names = {
      "GPIPE_REPLICAS", "GPIPE_TIMEOUT",        "GPIPE_INTERFACE",     "GPIPE_SECRET",
      "SLURM_STEPID",   "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"};
  for (const Environment& environment : kAll) {
    for (const auto& [name, value] : environment) names.push_back(name);
  }
  const std::vector<std::string> values = {"",
                                           "0",
                                           "1",
                                           "2",
                                           "3",
                                           "4",
                                           "7",
                                           "-1",
                                           "65535",
                                           "65536",
                                           "x",
                                           " 1",
                                           "1e3",
                                           "99999999999999999999",
                                           "nan",
                                           "n[1-",
                                           "n[1-3],m",
                                           "2(x2)",
                                           "a[0-9]b",
                                           "4294967295",
                                           "127.0.0.1",
                                           "::1",
                                           "host",
                                           "\xff\x01#",
                                           "n[2-1]",
                                           "1,1",
                                           "n[1-9]m[0-1]",
                                           "2147483647"};
  std::mt19937 random(7);
  const auto pick = [&](std::size_t size) { return std::uniform_int_distribution<std::size_t>(0, size - 1)(random); };
  int num_worlds = 0;
  int num_refusals = 0;
  for (int round = 0; round < 50000; ++round) {
    Environment environment = pick(2) == 0 ? Environment() : kAll[pick(kAll.size())];
    for (std::size_t count = pick(6); count > 0; --count)
      environment[names[pick(names.size())]] = values[pick(values.size())];
    if (pick(4) == 0) environment.erase(names[pick(names.size())]);
    try {
      const World world = world_of(environment);
      ++num_worlds;
      ASSERT_TRUE(0 <= world.rank && world.rank < world.size);
      ASSERT_TRUE(0 <= world.local_rank && world.local_rank < world.local_size && world.local_size <= world.size);
      ASSERT_EQ(world.num_stages() * world.num_replicas, world.size);
      ASSERT_TRUE(world.size == 1 || (world.master_port > 0 && !world.master_address.empty()));
    } catch (const EnvironmentError& error) {
      ++num_refusals;
      ASSERT_THAT(error.what(), HasSubstr(error.variable()));
    }
  }
  EXPECT_GT(num_worlds, 5000);
  EXPECT_GT(num_refusals, 5000);
}

}  // namespace
}  // namespace gpipe
