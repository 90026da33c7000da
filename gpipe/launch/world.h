// World: the processes that train together, and this one's place among them, as a launcher's variables tell it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpipe {

// Who started the processes.
enum class Launcher { kNone, kGpipe, kTorchrun, kOpenMpi, kMpich, kSlurm };

// "gpipe launch", "torchrun", "Open MPI", "MPICH", "Slurm"; "no launcher".
const char* name(Launcher launcher);

// Consecutive ranks are the stages of one replica:
//
//   rank      0 1 2 3 4 5        6 ranks, 2 replicas
//   replica   0 0 0 1 1 1
//   stage     0 1 2 0 1 2
struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among those on the same host
  int local_size = 1;
  int num_replicas = 1;
  std::string host;                          // this one's name; empty if no variable says it
  std::string master_address = "127.0.0.1";  // where rank 0 listens for the others
  int master_port = 0;                       // 0 only in a world of one
  std::string network_interface;             // to bind to; empty if none is named and the master is on another host
  std::string secret;                        // that all of them share; empty if none is given
  double timeout_seconds = 60;               // to wait for another rank
  Launcher launcher = Launcher::kNone;

  int num_stages() const { return size / num_replicas; }
  int stage() const { return rank % num_stages(); }
  int replica() const { return rank / num_stages(); }
};

// The value of a variable, if it is set. An empty value counts as none.
using Variables = std::function<std::optional<std::string>(std::string_view name)>;

// The world that the variables describe: those of the first launcher that left any, in the order of `Launcher`; a world
// of one if none did. docs/launching.md lists them. Throws EnvironmentError, which names the variable, the launcher and
// a remedy, if one is missing or cannot be used.
World world_from(const Variables& variables);

// The same from this process's environment, with the host's name from the system if no variable says it.
World read_world();

// Whether only processes on the same host can reach `address`: 127.0.0.1, localhost, ::1.
bool is_loopback(std::string_view address);

}  // namespace gpipe
