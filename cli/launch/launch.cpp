#include "cli/launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "gpipe/error.h"
#include "gpipe/launch/world.h"

namespace gpipe::cli {
namespace {

using detail::FileDescriptor;

// What the ranks would say later, all of them.
void check_world(const std::vector<std::string>& environment) {
  world_from([&](std::string_view name) -> std::optional<std::string> {
    for (const std::string& entry : environment) {
      if (entry.size() > name.size() && entry[name.size()] == '=' && entry.compare(0, name.size(), name) == 0) {
        return entry.substr(name.size() + 1);
      }
    }
    return std::nullopt;
  });
}

// A pipe must not get the number of a standard stream that somebody closed.
void open_standard_streams() {
  int fd = 0;
  while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) close(fd);
}

std::vector<pid_t> children() {
  const std::string self = std::to_string(getpid());
  std::ifstream file("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

// While it lives, orphans of the ranks become children of this process; at the end they are killed. Those it had
// before, from a shell that became this program, are not touched.
class Orphans {
 public:
  Orphans() : before_(children()) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;
  ~Orphans() {
    // The death of one may bring others.
    for (bool any = true; any;) {
      any = false;
      for (const pid_t pid : children()) {
        if (std::find(before_.begin(), before_.end(), pid) != before_.end()) continue;
        kill(pid, SIGKILL);
        TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0));
        any = true;
      }
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

 private:
  const std::vector<pid_t> before_;
};

// How the launcher learns that the ranks have met: a place for the file that rank 0 leaves, see report_meeting. It goes
// when this goes.
class MeetingFile {
 public:
  MeetingFile() : folder_(std::filesystem::temp_directory_path() / "gpipe-launch-XXXXXX") {
    if (mkdtemp(folder_.data()) != nullptr) return;
    throw LaunchError(fmt::format("cannot make a folder for restarts, {}: {}; TMPDIR names another place", folder_,
                                  std::strerror(errno)),
                      LaunchError::kNotStarted);
  }
  ~MeetingFile() {
    take();
    rmdir(folder_.c_str());
  }
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

  std::string path() const { return folder_ + "/met"; }
  // Whether the ranks have met since the last call.
  bool take() { return unlink(path().c_str()) == 0; }

 private:
  std::string folder_;
};

void kill_started(const std::vector<RankProcess>& ranks) {
  for (const RankProcess& rank : ranks) kill(-rank.pid, SIGKILL);
  for (const RankProcess& rank : ranks) waitpid(rank.pid, nullptr, 0);
}

std::vector<RankProcess> start(const Job& job, const std::vector<std::string>& program, const SignalQueue& signals,
                               const Guard& guard) {
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  check_world(rank_environment(job, 0, inherited));
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<RankProcess> ranks;
  try {
    for (int local_rank = 0; local_rank < job.num_local_ranks; ++local_rank) {
      const int rank = job.first_rank + local_rank;
      const bool reads = rank == 0 && isatty(STDIN_FILENO) == 0;
      ranks.push_back(
          spawn({rank, program, rank_environment(job, local_rank, inherited), reads ? STDIN_FILENO : nothing.get()},
                signals, guard));
    }
  } catch (...) {
    kill_started(ranks);
    throw;
  }
  return ranks;
}

// With fewer ranks than the job has, if it is a restart and the system has no room for all.
std::vector<RankProcess> start_again(const LaunchOptions& options, Job& job, const SignalQueue& signals,
                                     const Guard& guard) {
  while (true) {
    try {
      return start(job, options.program, signals, guard);
    } catch (const LaunchError& error) {
      const bool may_be_fewer = job.restart > 0 && job.num_ranks > options.min_ranks;
      if (error.exit_code() != LaunchError::kNotStarted || !may_be_fewer) throw;
    }
    Job smaller = options.renew(job.num_ranks - 1);
    smaller.restart = job.restart;
    smaller.met_file = job.met_file;
    job = smaller;
  }
}

}  // namespace

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  // Up to 256 bytes come at once, or not at all.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw LaunchError(fmt::format("the system has no random bits for a secret: {}", std::strerror(errno)),
                      LaunchError::kNotStarted);
  }
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return digits;
}

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

LaunchResult launch(const LaunchOptions& options) {
  open_standard_streams();
  const SignalQueue signals;
  const Orphans orphans;  // the last to go but one: the guard ends before it looks
  Guard guard;
  if (options.max_restarts == 0) {
    return supervise(start(options.job, options.program, signals, guard), signals, guard, options);
  }
  MeetingFile meeting;
  Job job = options.job;
  bool have_met = false;
  for (int restart = 0;; ++restart) {
    job.restart = restart;
    job.met_file = meeting.path();
    LaunchResult result = supervise(start_again(options, job, signals, guard), signals, guard, options);
    if (!result.failure || result.interrupted_by != 0 || restart == options.max_restarts) return result;
    const bool meet_now = meeting.take();
    // Bad usage, by the custom of exit codes: the next start would end in the same way.
    constexpr int kBadUsage = 2;
    if (!meet_now && !have_met && result.exit_code == kBadUsage) return result;
    const bool is_short_of_one = have_met && !meet_now && job.num_ranks > options.min_ranks;
    have_met |= meet_now;
    job = options.renew(job.num_ranks - (is_short_of_one ? 1 : 0));
    if (options.on_restart) options.on_restart(result, restart + 1, job.num_ranks);
  }
}

}  // namespace gpipe::cli
