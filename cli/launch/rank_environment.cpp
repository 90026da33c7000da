#include "cli/launch/rank_environment.h"

#include <fmt/format.h>

#include <map>

namespace gpipe::cli {

std::vector<std::string> rank_environment(const Job& job, int local_rank, const std::vector<std::string>& inherited) {
  const std::string rank = std::to_string(job.first_rank + local_rank);
  const std::string size = std::to_string(job.num_ranks);
  const std::string local = std::to_string(local_rank);
  const std::string local_size = std::to_string(job.num_local_ranks);
  const std::string port = std::to_string(job.master_port);
  std::map<std::string, std::string> variables = {
      {"GPIPE_RANK", rank},
      {"GPIPE_WORLD_SIZE", size},
      {"GPIPE_LOCAL_RANK", local},
      {"GPIPE_LOCAL_WORLD_SIZE", local_size},
      {"GPIPE_HOST", job.host},
      {"GPIPE_MASTER_ADDR", job.master_address},
      {"GPIPE_MASTER_PORT", port},
      {"GPIPE_SECRET", job.secret},
      {"GPIPE_RESTART", std::to_string(job.restart)},
      {"GPIPE_MET_FILE", job.met_file},
      // For programs that know torchrun only.
      {"RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", local_size},
      {"MASTER_ADDR", job.master_address},
      {"MASTER_PORT", port},
  };
  if (job.num_replicas) variables["GPIPE_REPLICAS"] = std::to_string(*job.num_replicas);
  if (job.timeout_seconds) variables["GPIPE_TIMEOUT"] = fmt::format("{}", *job.timeout_seconds);
  if (!job.network_interface.empty()) variables["GPIPE_INTERFACE"] = job.network_interface;

  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (variables.count(entry.substr(0, entry.find('='))) == 0) environment.push_back(entry);
  }
  for (const auto& [name, value] : variables) environment.push_back(fmt::format("{}={}", name, value));
  return environment;
}

}  // namespace gpipe::cli
