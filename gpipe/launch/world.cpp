#include "gpipe/launch/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "gpipe/error.h"
#include "gpipe/launch/slurm.h"
#include "gpipe/os/network.h"
#include "gpipe/text/number.h"

namespace gpipe {
namespace {

using detail::host_name;
using detail::to_number;

constexpr int kMost = std::numeric_limits<int>::max();
constexpr int kMostPort = 65535;
constexpr const char* kLoopback = "127.0.0.1";

// A value in a message: short, and without what could steer a terminal.
std::string in_quotes(const std::string& text) {
  constexpr std::size_t kLongest = 60;
  std::string shown = text.substr(0, kLongest);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }, '?');
  return fmt::format("'{}{}'", shown, text.size() > kLongest ? "..." : "");
}

// Reads variables of one launcher as typed values; every refusal, an EnvironmentError, names the variable, the launcher
// and a remedy.
class VariableReader {
 public:
  // REQUIRES: `variables` outlives the reader.
  VariableReader(const Variables& variables, Launcher launcher) : variables_(variables), launcher_(launcher) {}

  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<std::string> text(const char* name) const {
    std::optional<std::string> value = variables_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::optional<int> whole(const char* name, int least, int most) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int> whole = to_number<int>(*value);
    if (!whole || *whole < least || *whole > most) {
      refuse(name, fmt::format("is {}, not a whole number from {} to {}", in_quotes(*value), least, most));
    }
    return whole;
  }

  std::optional<double> seconds(const char* name) const {
    constexpr double kMostSeconds = 1e6;
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<double> seconds = to_number<double>(*value);
    if (!seconds || !(*seconds > 0 && *seconds <= kMostSeconds)) {
      refuse(name,
             fmt::format("is {}, not a number of seconds above 0 and at most {:.0f}", in_quotes(*value), kMostSeconds));
    }
    return seconds;
  }

  // Without blanks, control characters and slashes.
  std::optional<std::string> word(const char* name, std::size_t longest, const char* what) const {
    std::optional<std::string> value = text(name);
    const auto is_odd = [](unsigned char letter) { return letter <= 0x20 || letter == 0x7f || letter == '/'; };
    if (value && (value->size() > longest || std::any_of(value->begin(), value->end(), is_odd))) {
      refuse(name, fmt::format("is {}, not the name {}", in_quotes(*value), what));
    }
    return value;
  }

  // The same, and throws if it is not set: `because` says why it has to be.
  int required_whole(const char* name, int least, int most, const std::string& because) const {
    const std::optional<int> value = whole(name, least, most);
    if (!value) refuse_missing(name, because);
    return *value;
  }
  std::string required_text(const char* name, const std::string& because) const {
    std::optional<std::string> value = text(name);
    if (!value) refuse_missing(name, because);
    return *value;
  }

  [[noreturn]] void refuse_missing(const char* name, const std::string& because) const {
    throw EnvironmentError(fmt::format("{} is missing{}: {}", name, of_launcher(), because), name);
  }
  [[noreturn]] void refuse(const char* name, const std::string& problem) const {
    throw EnvironmentError(fmt::format("{}{} {}", name, of_launcher(), problem), name);
  }

 private:
  std::string of_launcher() const {
    return launcher_ == Launcher::kNone ? "" : fmt::format(" (of {})", gpipe::name(launcher_));
  }

  const Variables& variables_;
  Launcher launcher_;
};

// Launchers that say it all in four variables.
struct Family {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Family kFamilies[] = {
    {Launcher::kGpipe, "GPIPE_RANK", "GPIPE_WORLD_SIZE", "GPIPE_LOCAL_RANK", "GPIPE_LOCAL_WORLD_SIZE"},
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

// Note [Steps of Slurm]
// An sbatch script, and the shell of salloc, have SLURM_PROCID=0 and the size of the whole allocation, though nobody
// started the other tasks yet. Only srun makes a step that is numbered from 0; the steps of Slurm itself, among them
// that of the script, have the largest 32-bit numbers, or none.
std::optional<std::string> slurm_step(const VariableReader& reader) {
  constexpr std::uint32_t kFirstOfSlurmItself = 0xfffffff0U;
  std::optional<std::string> step = reader.text("SLURM_STEP_ID");
  if (!step) step = reader.text("SLURM_STEPID");
  if (!step) return std::nullopt;
  const std::optional<std::uint32_t> number = to_number<std::uint32_t>(*step);
  if (!number) reader.refuse("SLURM_STEP_ID", "is not a number");
  return *number >= kFirstOfSlurmItself ? std::nullopt : step;
}

const Family* find_family(const Variables& variables) {
  const VariableReader any(variables, Launcher::kSlurm);
  for (const Family& family : kFamilies) {
    if (!any.has(family.rank) && !any.has(family.size)) continue;
    // srun sets PMI_RANK and PMI_SIZE for MPICH programs too, but its own variables say more.
    if (family.launcher == Launcher::kMpich && !any.has(family.local_rank) && slurm_step(any)) continue;
    return &family;
  }
  return nullptr;
}

std::string started_by(Launcher launcher, const char* seen) {
  return fmt::format(
      "{} is set, so {} seems to have started this process; set the one that is missing, or unset {} to run alone",
      seen, name(launcher), seen);
}

void check_place(const VariableReader& reader, const Family& family, const World& world) {
  if (world.rank >= world.size) {
    reader.refuse(family.rank,
                  fmt::format("is {}, but {} is {}: ranks count from 0", world.rank, family.size, world.size));
  }
  if (world.local_size > world.size) {
    reader.refuse(family.local_size, fmt::format("is {}, but {} is {}", world.local_size, family.size, world.size));
  }
  if (world.local_rank >= world.local_size) {
    reader.refuse(family.local_rank, fmt::format("is {}, but {} is {}: ranks count from 0", world.local_rank,
                                                 family.local_size, world.local_size));
  }
}

// Rank and size. Local ones may be missing, both together, if somebody set the variables by hand: then all ranks are on
// this host if the others' meeting point is, and each is on its own host otherwise.
void read_place(const VariableReader& reader, const Family& family, bool master_is_here, World& world) {
  const bool has_rank = reader.has(family.rank);
  world.rank = reader.required_whole(family.rank, 0, kMost, started_by(family.launcher, family.size));
  world.size =
      reader.required_whole(family.size, 1, kMost, started_by(family.launcher, has_rank ? family.rank : family.size));
  const bool local_may_be_missing = family.launcher != Launcher::kOpenMpi;
  if (local_may_be_missing && !reader.has(family.local_rank) && !reader.has(family.local_size)) {
    world.local_rank = master_is_here ? world.rank : 0;
    world.local_size = master_is_here ? world.size : 1;
  } else {
    const std::string because = started_by(family.launcher, family.rank);
    world.local_rank = reader.required_whole(family.local_rank, 0, kMost, because);
    world.local_size = reader.required_whole(family.local_size, 1, kMost, because);
  }
  check_place(reader, family, world);
}

// A port that is the same on every rank of a job and probably differs between jobs, below those that the system gives
// away.
int port_of_job(const std::string& job) {
  constexpr std::uint32_t kFirst = 20000;
  constexpr std::uint32_t kCount = 12768;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return static_cast<int>(kFirst + hash % kCount);
}

std::optional<std::string> given_address(const VariableReader& reader) {
  constexpr std::size_t kLongest = 253;  // of a host's name
  const auto address = [&](const char* variable) {
    return reader.word(variable, kLongest, "or the address of a host");
  };
  const std::optional<std::string> own = address("GPIPE_MASTER_ADDR");
  return own ? own : address("MASTER_ADDR");
}

std::optional<int> given_port(const VariableReader& reader) {
  const std::optional<int> port = reader.whole("GPIPE_MASTER_PORT", 1, kMostPort);
  return port ? port : reader.whole("MASTER_PORT", 1, kMostPort);
}

// mpirun does not say where the ranks could meet, but all on one host can do so there.
void read_mpi_rendezvous(const VariableReader& reader, World& world) {
  constexpr int kPortOfTorchrun = 29500;
  if (const std::optional<std::string> address = given_address(reader)) {
    world.master_address = *address;
  } else if (world.local_size < world.size) {
    reader.refuse_missing("MASTER_ADDR",
                          "the ranks are on several hosts and have to meet on rank 0's; set its name or address");
  }
  world.master_port = kPortOfTorchrun;
  for (const char* variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    if (const std::optional<std::string> job = reader.text(variable)) {
      world.master_port = port_of_job(*job);
      break;
    }
  }
  world.master_port = given_port(reader).value_or(world.master_port);
}

// torchrun's agent may listen on MASTER_PORT itself, for Python programs: then the ranks meet at a port of their own.
int port_beside_agent(const VariableReader& reader, int port) {
  const bool is_taken = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True" && !reader.has("GPIPE_MASTER_PORT");
  if (!is_taken) return port;
  return port_of_job(fmt::format("{} {} {}", reader.text("TORCHELASTIC_RUN_ID").value_or(""), port,
                                 reader.text("TORCHELASTIC_RESTART_COUNT").value_or("")));
}

void read_rendezvous(const VariableReader& reader, const Family& family, World& world) {
  if (family.launcher == Launcher::kOpenMpi || family.launcher == Launcher::kMpich) {
    read_mpi_rendezvous(reader, world);
    return;
  }
  const std::optional<std::string> address = given_address(reader);
  const std::optional<int> port = given_port(reader);
  const bool is_gpipe = family.launcher == Launcher::kGpipe;
  if (world.size > 1 && !address) {
    reader.refuse_missing(is_gpipe ? "GPIPE_MASTER_ADDR" : "MASTER_ADDR",
                          "the ranks have to meet; set the name or address of rank 0's host");
  }
  if (world.size > 1 && !port) {
    reader.refuse_missing(is_gpipe ? "GPIPE_MASTER_PORT" : "MASTER_PORT",
                          "the ranks have to meet; set a free port of rank 0's host");
  }
  world.master_address = address.value_or(kLoopback);
  world.master_port = port.value_or(0);
  if (port && !is_gpipe) world.master_port = port_beside_agent(reader, *port);
}

World read_family(const Variables& variables, const Family& family) {
  const VariableReader reader(variables, family.launcher);
  World world;
  world.launcher = family.launcher;
  const std::optional<std::string> address = given_address(reader);
  read_place(reader, family, address && is_loopback(*address), world);
  read_rendezvous(reader, family, world);
  return world;
}

// The step's own variable, or the allocation's, which older versions of Slurm set for a step as well.
const char* step_or_job(const VariableReader& reader, const char* of_step, const char* of_job) {
  return reader.has(of_step) ? of_step : of_job;
}

std::vector<std::string> slurm_hosts(const VariableReader& reader, const std::string& because) {
  const char* variable = reader.has("SLURM_STEP_NODELIST")
                             ? "SLURM_STEP_NODELIST"
                             : step_or_job(reader, "SLURM_JOB_NODELIST", "SLURM_NODELIST");
  const std::string list = reader.required_text(variable, because);
  try {
    return detail::expand_slurm_hosts(list);
  } catch (const ParseError& error) {
    reader.refuse(variable, fmt::format("is not a list of hosts such as node[03-05]: {}", error.what()));
  }
}

int slurm_local_size(const VariableReader& reader, const std::string& because) {
  const char* variable = step_or_job(reader, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::string list = reader.required_text(variable, because);
  try {
    return detail::slurm_tasks_of_node(list, reader.required_whole("SLURM_NODEID", 0, kMost, because));
  } catch (const ParseError& error) {
    reader.refuse(variable, fmt::format("is not a list such as 4(x2),3: {}", error.what()));
  }
}

World read_slurm(const Variables& variables, const std::string& step) {
  const VariableReader reader(variables, Launcher::kSlurm);
  const std::string because =
      "SLURM_STEP_ID is set, so srun seems to have started this process; unset SLURM_STEP_ID to run alone";
  World world;
  world.launcher = Launcher::kSlurm;
  const char* size = step_or_job(reader, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  world.rank = reader.required_whole("SLURM_PROCID", 0, kMost, because);
  world.size = reader.required_whole(size, 1, kMost, because);
  world.local_rank = reader.required_whole("SLURM_LOCALID", 0, kMost, because);
  const std::vector<std::string> hosts = slurm_hosts(reader, because);
  world.local_size = hosts.size() == 1 ? world.size : slurm_local_size(reader, because);
  check_place(reader,
              {Launcher::kSlurm, "SLURM_PROCID", size, "SLURM_LOCALID",
               step_or_job(reader, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")},
              world);
  world.master_address = given_address(reader).value_or(hosts.size() == 1 ? kLoopback : hosts.front());
  if (const std::optional<int> port = given_port(reader)) {
    world.master_port = *port;
  } else {
    world.master_port = port_of_job(
        reader.required_text("SLURM_JOB_ID", "the port to meet at is made of it; set it, or MASTER_PORT") + "." + step);
  }
  return world;
}

// What every launcher leaves to the user. Not HOSTNAME, which srun and mpirun may bring along from another host.
void read_wishes(const VariableReader& reader, World& world) {
  for (const char* variable : {"GPIPE_HOST", "SLURMD_NODENAME"}) {
    if (world.host.empty()) world.host = reader.text(variable).value_or("");
  }
  constexpr std::size_t kLongestInterface = 15;
  world.network_interface =
      reader.word("GPIPE_INTERFACE", kLongestInterface, "of a network interface such as lo or eth0")
          .value_or(is_loopback(world.master_address) ? "lo" : "");
  world.secret = reader.text("GPIPE_SECRET").value_or("");
  world.timeout_seconds = reader.seconds("GPIPE_TIMEOUT").value_or(world.timeout_seconds);
  world.num_replicas = reader.whole("GPIPE_REPLICAS", 1, kMost).value_or(1);
  if (world.size % world.num_replicas != 0) {
    reader.refuse("GPIPE_REPLICAS",
                  fmt::format("is {}, which does not divide the {} ranks of the world: a replica has the "
                              "same number of stages as any other",
                              world.num_replicas, world.size));
  }
}

}  // namespace

const char* name(Launcher launcher) {
  constexpr std::array<const char*, 6> kNames = {"no launcher", "gpipe launch", "torchrun",
                                                 "Open MPI",    "MPICH",        "Slurm"};
  return kNames.at(static_cast<std::size_t>(launcher));
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address == "[::1]" || address.substr(0, 4) == "127.";
}

World world_from(const Variables& variables) {
  World world;
  const VariableReader slurm(variables, Launcher::kSlurm);
  if (const Family* family = find_family(variables)) {
    world = read_family(variables, *family);
  } else if (const std::optional<std::string> step = slurm_step(slurm)) {
    world = read_slurm(variables, *step);
  }
  read_wishes(VariableReader(variables, Launcher::kNone), world);
  return world;
}

World read_world() {
  World world = world_from([](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  if (world.host.empty()) world.host = host_name();
  return world;
}

}  // namespace gpipe
