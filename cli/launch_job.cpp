#include "cli/launch_job.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "cli/command.h"
#include "cli/input_file.h"
#include "gpipe/launch/secret.h"
#include "gpipe/os/host_name.h"
#include "gpipe/os/network.h"

namespace gpipe::cli {
namespace {

constexpr int kMostRanksOfAHost = 1024;
constexpr int kDefaultPort = 29500;  // torchrun's
constexpr std::size_t kShortestSecret = 16;

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// Which of the hosts this is, by its name up to the first dot if not by all of it.
int find_own_index(const std::vector<std::string>& hosts) {
  const std::string own = host_name();
  const auto first_part = [](const std::string& name) { return name.substr(0, name.find('.')); };
  std::vector<int> found;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (hosts[host] == own) return static_cast<int>(host);
    if (first_part(hosts[host]) == first_part(own)) found.push_back(static_cast<int>(host));
  }
  if (found.size() == 1) return found.front();
  throw UsageError(fmt::format("which of the hosts {} is this one, '{}'?", fmt::join(hosts, ", "), own),
                   "add --host-index I: 0 for the first of them");
}

std::string read_secret_file(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw UsageError(fmt::format("--secret-file: others than its owner may use '{}'", path),
                     fmt::format("chmod 600 '{}', and make a new secret if somebody could have read it", path));
  }
  std::string secret = read_input_file(path);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  return secret;
}

std::string find_secret(const JobOptions& options) {
  const bool has_file = !options.secret_file.empty();
  const std::string secret = has_file ? read_secret_file(options.secret_file) : environment("GPIPE_SECRET");
  const char* make_one = "make one with: (umask 077; openssl rand -hex 32 > FILE), and copy it to every host";
  if (secret.empty() && !has_file) {
    if (options.hosts.empty()) return make_secret();
    throw UsageError("--hosts needs a secret that the hosts share: --secret-file FILE, or GPIPE_SECRET", make_one);
  }
  const bool is_line = std::none_of(secret.begin(), secret.end(), [](unsigned char letter) { return letter < 0x20; });
  if (secret.size() < kShortestSecret || !is_line) {
    throw UsageError(fmt::format("the secret of {} is not one line of {} letters or more",
                                 has_file ? "'" + options.secret_file + "'" : "GPIPE_SECRET", kShortestSecret),
                     make_one);
  }
  return secret;
}

void check_ranks(const JobOptions& options) {
  const int num_ranks = *options.num_ranks;
  const int num_hosts = options.hosts.empty() ? 1 : static_cast<int>(options.hosts.size());
  if (num_ranks % num_hosts != 0) {
    throw UsageError(fmt::format("{} ranks cannot be shared out evenly to {} hosts", num_ranks, num_hosts),
                     fmt::format("-n counts the ranks of all hosts: give a multiple of {}", num_hosts));
  }
  if (num_ranks / num_hosts > kMostRanksOfAHost) {
    throw UsageError(fmt::format("-n {} is more than {} ranks a host", num_ranks, kMostRanksOfAHost), "");
  }
  if (options.num_replicas && num_ranks % *options.num_replicas != 0) {
    throw UsageError(fmt::format("--replicas {} does not divide the {} ranks", *options.num_replicas, num_ranks),
                     "a replica has as many stages as any other");
  }
  if (options.host_index && *options.host_index >= num_hosts) {
    throw UsageError(
        fmt::format("--host-index {} of {} host{}", *options.host_index, num_hosts, num_hosts == 1 ? "" : "s"),
        "the first one is 0; --hosts names them");
  }
}

void place_on_this_host(const JobOptions& options, Job& job) {
  job.num_local_ranks = job.num_ranks;
  job.host = host_name();
  job.network_interface = options.network_interface;
  if (job.network_interface.empty()) job.network_interface = environment("GPIPE_INTERFACE");
  if (job.network_interface.empty()) job.network_interface = "lo";
  job.master_address = interface_address(job.network_interface);
  job.master_port = options.port ? *options.port : free_port(job.master_address);
}

void place_on_hosts(const JobOptions& options, Job& job) {
  const int index = options.host_index ? *options.host_index : find_own_index(options.hosts);
  job.num_local_ranks = job.num_ranks / static_cast<int>(options.hosts.size());
  job.first_rank = index * job.num_local_ranks;
  job.host = options.hosts[static_cast<std::size_t>(index)];
  job.network_interface = options.network_interface;
  if (!job.network_interface.empty()) interface_address(job.network_interface);  // throws if there is none
  job.master_address = options.hosts.front();
  job.master_port = options.port.value_or(kDefaultPort);
}

}  // namespace

Job make_job(const JobOptions& options) {
  check_ranks(options);
  Job job;
  job.num_ranks = *options.num_ranks;
  job.num_replicas = options.num_replicas;
  job.timeout_seconds = options.timeout_seconds;
  job.secret = find_secret(options);
  if (options.hosts.empty()) {
    place_on_this_host(options, job);
  } else {
    place_on_hosts(options, job);
  }
  return job;
}

}  // namespace gpipe::cli
