// What the options of gpipe launch make of this host: its ranks, where they meet, and their secret.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"

namespace gpipe::cli {

struct JobOptions {
  std::optional<int> num_ranks;
  std::optional<int> num_replicas;
  std::vector<std::string> hosts;  // empty: this one
  std::optional<int> host_index;
  std::optional<int> port;
  std::string network_interface;
  std::string secret_file;
  std::optional<double> timeout_seconds;
};

// REQUIRES: `num_ranks` is given. Throws UsageError or InvalidArgument for options that do not fit together, or this
// host.
Job make_job(const JobOptions& options);

}  // namespace gpipe::cli
