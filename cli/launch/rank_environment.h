// What a launcher tells each rank through its environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gpipe::cli {

// The processes of one run; those on this host are `num_local_ranks` from `first_rank` on.
struct Job {
  int num_ranks = 1;
  int first_rank = 0;
  int num_local_ranks = 1;
  std::optional<int> num_replicas;
  std::string host;
  std::string master_address;
  int master_port = 0;
  std::string network_interface;  // empty: none is named
  std::string secret;
  std::optional<double> timeout_seconds;
  int restart = 0;       // how often it was started before
  std::string met_file;  // for report_meeting; empty: nobody wants to know
};

// `inherited` ("NAME=value") with the variables of `gpipe launch` and torchrun set for that rank.
std::vector<std::string> rank_environment(const Job& job, int local_rank, const std::vector<std::string>& inherited);

}  // namespace gpipe::cli
