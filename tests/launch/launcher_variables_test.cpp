// What launchers really set, as `env` printed it in one of their processes, and the world that follows from it. Slurm
// 22.05.8 with two nodes, alpha and beta; MPICH 4.0.2; Open MPI 4.1.4; all of Debian 12. Variables that say nothing
// about the world are left out.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "gpipe/launch/world.h"

namespace gpipe {
namespace {

// Lines such as "PMI_RANK=1".
World world_of(const std::string& lines) {
  std::map<std::string, std::string, std::less<>> environment;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return world_from([&](std::string_view name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

struct Place {
  Launcher launcher;
  int rank;
  int size;
  int local_rank;
  int local_size;
  const char* master_address;
};

void expect_place(const World& world, const Place& place) {
  EXPECT_EQ(world.launcher, place.launcher);
  EXPECT_EQ(world.rank, place.rank);
  EXPECT_EQ(world.size, place.size);
  EXPECT_EQ(world.local_rank, place.local_rank);
  EXPECT_EQ(world.local_size, place.local_size);
  EXPECT_EQ(world.master_address, place.master_address);
}

// srun --nodes=2 --ntasks=4: three tasks on alpha, one on beta.
constexpr const char* kSrun = R"(SLURMD_NODENAME=beta
SLURM_CPUS_ON_NODE=1
SLURM_GTIDS=3
SLURM_JOBID=1
SLURM_JOB_CPUS_PER_NODE=3,1
SLURM_JOB_ID=1
SLURM_JOB_NODELIST=alpha,beta
SLURM_JOB_NUM_NODES=2
SLURM_LAUNCH_NODE_IPADDR=10.99.0.1
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=1
SLURM_NODELIST=alpha,beta
SLURM_NPROCS=4
SLURM_NTASKS=4
SLURM_PROCID=3
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=alpha,beta
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=4
SLURM_STEP_TASKS_PER_NODE=3,1
SLURM_TASKS_PER_NODE=3,1
SLURM_TOPOLOGY_ADDR=beta
SLURM_WORKING_CLUSTER=test:alpha:6817:9728:109
)";

TEST(LauncherVariables, OfSrun) {
  const World world = world_of(kSrun);
  expect_place(world, {Launcher::kSlurm, 3, 4, 0, 1, "alpha"});
  EXPECT_EQ(world.host, "beta");
  EXPECT_EQ(world.network_interface, "");
}

// srun --mpi=pmi2 --nodes=2 --ntasks=4 --tasks-per-node=2
TEST(LauncherVariables, OfSrunWithPmi) {
  expect_place(world_of(R"(PMI_FD=13
PMI_JOBID=5.0
PMI_RANK=3
PMI_SIZE=4
SLURMD_NODENAME=beta
SLURM_GTIDS=2,3
SLURM_JOB_CPUS_PER_NODE=2(x2)
SLURM_JOB_ID=5
SLURM_JOB_NODELIST=alpha,beta
SLURM_LOCALID=1
SLURM_MPI_TYPE=pmi2
SLURM_NNODES=2
SLURM_NODEID=1
SLURM_NODELIST=alpha,beta
SLURM_NPROCS=4
SLURM_NTASKS=4
SLURM_NTASKS_PER_NODE=2
SLURM_PROCID=3
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=alpha,beta
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=4
SLURM_STEP_TASKS_PER_NODE=2(x2)
SLURM_TASKS_PER_NODE=2(x2)
)"),
               {Launcher::kSlurm, 3, 4, 1, 2, "alpha"});
}

// sbatch --nodes=2 --ntasks=4: in the script itself, which is alone, and in `srun -n 3` in it.
constexpr const char* kSbatch = R"(SLURMD_NODENAME=alpha
SLURM_CPUS_ON_NODE=3
SLURM_GTIDS=0
SLURM_JOBID=1
SLURM_JOB_CPUS_PER_NODE=3,1
SLURM_JOB_ID=1
SLURM_JOB_NODELIST=alpha,beta
SLURM_JOB_NUM_NODES=2
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=0
SLURM_NODELIST=alpha,beta
SLURM_NODE_ALIASES=(null)
SLURM_NPROCS=4
SLURM_NTASKS=4
SLURM_PROCID=0
SLURM_TASKS_PER_NODE=3,1
)";

TEST(LauncherVariables, OfAnSbatchScript) {
  expect_place(world_of(kSbatch), {Launcher::kNone, 0, 1, 0, 1, "127.0.0.1"});
}

TEST(LauncherVariables, OfAStepThatIsSmallerThanItsAllocation) {
  expect_place(world_of(std::string(kSbatch) + R"(SLURM_DISTRIBUTION=block
SLURM_GTIDS=0,1
SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0=3,1
SLURM_LOCALID=1
SLURM_NPROCS=3
SLURM_NTASKS=3
SLURM_PROCID=1
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=alpha,beta
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=3
SLURM_STEP_TASKS_PER_NODE=2,1
SLURM_TASKS_PER_NODE=2,1
)"),
               {Launcher::kSlurm, 1, 3, 1, 2, "alpha"});
}

// salloc --nodes=2 --ntasks=4: a shell where it was typed, and one on the first node
// (LaunchParameters=use_interactive_step).
TEST(LauncherVariables, OfTheShellsOfSalloc) {
  const std::string shell = R"(SLURM_JOBID=2
SLURM_JOB_CPUS_PER_NODE=3,1
SLURM_JOB_ID=2
SLURM_JOB_NAME=interactive
SLURM_JOB_NODELIST=alpha,beta
SLURM_JOB_NUM_NODES=2
SLURM_NNODES=2
SLURM_NODELIST=alpha,beta
SLURM_NPROCS=4
SLURM_NTASKS=4
SLURM_TASKS_PER_NODE=3,1
)";
  expect_place(world_of(shell), {Launcher::kNone, 0, 1, 0, 1, "127.0.0.1"});
  expect_place(world_of(shell + R"(SLURM_LOCALID=0
SLURM_NODEID=0
SLURM_PROCID=0
SLURM_STEPID=4294967290
SLURM_STEP_ID=4294967290
SLURM_STEP_NODELIST=alpha
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS=1
SLURM_STEP_TASKS_PER_NODE=1
)"),
               {Launcher::kNone, 0, 1, 0, 1, "127.0.0.1"});
}

// mpirun in salloc --nodes=2 --ntasks=4 --tasks-per-node=2. What it has started on beta is a step of srun, of one task.
TEST(LauncherVariables, OfOpenMpiInAnAllocationOfSlurm) {
  expect_place(world_of(R"(MASTER_ADDR=alpha
OMPI_COMM_WORLD_LOCAL_RANK=1
OMPI_COMM_WORLD_LOCAL_SIZE=2
OMPI_COMM_WORLD_NODE_RANK=1
OMPI_COMM_WORLD_RANK=3
OMPI_COMM_WORLD_SIZE=4
PMIX_NAMESPACE=4236836865
PMIX_RANK=3
SLURMD_NODENAME=beta
SLURM_GTIDS=0
SLURM_JOB_ID=3
SLURM_JOB_NODELIST=alpha,beta
SLURM_LOCALID=0
SLURM_NNODES=1
SLURM_NODEID=0
SLURM_NODELIST=alpha,beta
SLURM_NPROCS=1
SLURM_NTASKS=1
SLURM_NTASKS_PER_NODE=1
SLURM_PROCID=0
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=beta
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS=1
SLURM_STEP_TASKS_PER_NODE=1
SLURM_TASKS_PER_NODE=1
)"),
               {Launcher::kOpenMpi, 3, 4, 1, 2, "alpha"});
}

// mpiexec -n 4 in the same: a step of one task a node, which starts two ranks each.
TEST(LauncherVariables, OfMpichInAnAllocationOfSlurm) {
  expect_place(world_of(R"(MASTER_ADDR=alpha
MPI_LOCALNRANKS=2
MPI_LOCALRANKID=0
PMI_FD=5
PMI_RANK=2
PMI_SIZE=4
SLURMD_NODENAME=beta
SLURM_GTIDS=1
SLURM_JOB_ID=4
SLURM_JOB_NODELIST=alpha,beta
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=1
SLURM_NODELIST=alpha,beta
SLURM_NPROCS=2
SLURM_NTASKS=4
SLURM_PROCID=1
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=alpha,beta
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=2
SLURM_STEP_TASKS_PER_NODE=1(x2)
SLURM_TASKS_PER_NODE=1(x2)
)"),
               {Launcher::kMpich, 2, 4, 0, 2, "alpha"});
}

// mpiexec -n 2 on one host.
TEST(LauncherVariables, OfMpich) {
  const World world = world_of(R"(HYDI_CONTROL_FD=7
MPI_LOCALNRANKS=2
MPI_LOCALRANKID=1
PMI_FD=8
PMI_RANK=1
PMI_SIZE=2
)");
  expect_place(world, {Launcher::kMpich, 1, 2, 1, 2, "127.0.0.1"});
  EXPECT_EQ(world.master_port, 29500);
  EXPECT_EQ(world.network_interface, "lo");
}

}  // namespace
}  // namespace gpipe
