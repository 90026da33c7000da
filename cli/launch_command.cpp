#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/launch/launch.h"
#include "cli/quantity.h"
#include "cli/terminal.h"
#include "gpipe/os/network.h"

namespace gpipe::cli {
namespace {

using detail::free_port;
using detail::host_name;
using detail::interface_address;

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

struct LaunchCommand {
  std::vector<std::string> program;
  JobOptions job;
  double grace_seconds = 10;
  int max_restarts = 0;
  std::optional<int> min_ranks;
  bool no_prefix = false;
};

int parse_port(std::string_view word) {
  constexpr int kMostPort = 65535;
  const int port = parse_count(word);
  if (port > kMostPort) throw InvalidArgument(fmt::format("'{}' is not a port from 1 to {}", word, kMostPort));
  return port;
}

double parse_grace(std::string_view word) {
  constexpr double kMost = 1e6;
  const double seconds = parse_seconds(word);
  if (seconds > kMost) throw InvalidArgument(fmt::format("'{}' is more than {:.0f} seconds", word, kMost));
  return seconds;
}

double parse_timeout(std::string_view word) {
  const double seconds = parse_grace(word);
  if (seconds <= 0) throw InvalidArgument(fmt::format("'{}' is not above 0 seconds", word));
  return seconds;
}

std::string parse_host(std::string_view word) {
  if (word.empty() || word.find_first_of(" \t/") != std::string_view::npos) {
    throw InvalidArgument(fmt::format("'{}' is not the name or the address of a host", word));
  }
  return std::string(word);
}

std::vector<std::string> parse_hosts(std::string_view words) {
  std::vector<std::string> hosts = parse_list(words, parse_host);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (std::count(hosts.begin(), hosts.end(), hosts[host]) > 1) {
      throw InvalidArgument(fmt::format("'{}' is there twice; -n counts the ranks of all hosts", hosts[host]));
    }
  }
  return hosts;
}

constexpr int kMostRanksOfAHost = 1024;
constexpr int kDefaultPort = 29500;  // torchrun's
constexpr std::size_t kShortestSecret = 16;

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
  refuse_if(secret.size() < kShortestSecret || !is_line,
            fmt::format("the secret of {} is not one line of {} letters or more",
                        has_file ? "'" + options.secret_file + "'" : "GPIPE_SECRET", kShortestSecret),
            make_one);
  return secret;
}

void check_ranks(const JobOptions& options) {
  const int num_ranks = *options.num_ranks;
  const int num_hosts = options.hosts.empty() ? 1 : static_cast<int>(options.hosts.size());
  refuse_if(num_ranks % num_hosts != 0,
            fmt::format("{} ranks cannot be shared out evenly to {} hosts", num_ranks, num_hosts),
            fmt::format("-n counts the ranks of all hosts: give a multiple of {}", num_hosts));
  refuse_if(num_ranks / num_hosts > kMostRanksOfAHost,
            fmt::format("-n {} is more than {} ranks a host", num_ranks, kMostRanksOfAHost), "");
  const int num_replicas = options.num_replicas.value_or(1);
  refuse_if(num_ranks % num_replicas != 0,
            fmt::format("--replicas {} does not divide the {} ranks", num_replicas, num_ranks),
            "a replica has as many stages as any other");
  const int index = options.host_index.value_or(0);
  refuse_if(index >= num_hosts,
            fmt::format("--host-index {} of {} host{}", index, num_hosts, num_hosts == 1 ? "" : "s"),
            "the first one is 0; --hosts names them");
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

// What the options make of this host: its ranks, where they meet, and their secret. REQUIRES: `num_ranks` is given.
// Throws UsageError or InvalidArgument for options that do not fit together, or this host.
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

std::string describe_signal(int signal) { return fmt::format("signal {} ({})", signal, strsignal(signal)); }

std::string describe_failure(const RankFailure& failure) {
  return fmt::format("rank {} (pid {}) {}", failure.rank, failure.pid,
                     failure.signal != 0 ? fmt::format("was killed by {}", describe_signal(failure.signal))
                                         : fmt::format("ended with exit code {}", failure.exit_code));
}

// A command of gpipe that was used badly: what it has said is short, and stands right above.
bool is_bad_usage_of_gpipe(const RankFailure& failure) {
  constexpr std::string_view kOurs = "gpipe: ";
  return failure.signal == 0 && failure.exit_code == kBadUsage && !failure.last_lines.empty() &&
         std::string_view(failure.last_lines.front()).substr(0, kOurs.size()) == kOurs;
}

void print_failure(const LaunchResult& result, bool has_others) {
  const RankFailure& failure = *result.failure;
  std::string message = describe_failure(failure);
  if (result.interrupted_by != 0) {
    print_error(fmt::format("{} was passed on to the ranks; {}", describe_signal(result.interrupted_by), message));
    return;
  }
  if (has_others) message += "; the others were stopped";
  if (is_bad_usage_of_gpipe(failure)) {
    print_error(message);
    return;
  }
  std::string lines;
  for (const std::string& line : failure.last_lines) lines += fmt::format("\n    {}", line);
  print_error(message,
              lines.empty() ? "it printed nothing to standard error" : "its last lines on standard error:" + lines);
}

void check_program(const LaunchCommand& command) {
  const char* example = "for example: gpipe launch -n 4 -- ./program arguments";
  if (!command.job.num_ranks) throw UsageError("how many ranks? -n is missing", example);
  if (command.program.empty()) throw UsageError("which program? There is none after '--'", example);
  if (command.program.front().empty()) throw UsageError("'' is not the name of a program", example);
}

void check_restarts(const LaunchCommand& command) {
  if (!command.min_ranks) return;
  refuse_if(command.max_restarts == 0, "--min-ranks means nothing without --max-restarts",
            "add --max-restarts R, or leave it out");
  refuse_if(*command.min_ranks > *command.job.num_ranks,
            fmt::format("--min-ranks {} is more than -n {}", *command.min_ranks, *command.job.num_ranks),
            "a job is started again with as many ranks, or with fewer");
  refuse_if(!command.job.hosts.empty() || command.job.num_replicas,
            "--min-ranks cannot be used with --hosts or --replicas: their number of ranks stays", "leave it out");
}

void add_restarts(const LaunchCommand& command, LaunchOptions& options) {
  options.max_restarts = command.max_restarts;
  const bool may_be_fewer = command.job.hosts.empty() && !command.job.num_replicas;
  options.min_ranks = may_be_fewer ? command.min_ranks.value_or(1) : *command.job.num_ranks;
  options.renew = [&command](int num_ranks) {
    JobOptions job = command.job;
    job.num_ranks = num_ranks;
    return make_job(job);
  };
  options.on_restart = [&command](const LaunchResult& failed, int restart, int num_ranks) {
    print_error(describe_failure(*failed.failure),
                fmt::format("restart {} of {}, with {} rank{}", restart, command.max_restarts, num_ranks,
                            num_ranks == 1 ? "" : "s"));
  };
}

int run_launch(const LaunchCommand& command) {
  LaunchOptions options;
  check_program(command);
  check_restarts(command);
  options.job = make_job(command.job);
  options.program = command.program;
  add_restarts(command, options);
  options.grace_seconds = command.grace_seconds;
  options.prefix = !command.no_prefix;
  options.colour_out = shows_colour(Colour::kAuto, STDOUT_FILENO);
  options.colour_err = shows_colour(Colour::kAuto, STDERR_FILENO);
  try {
    const LaunchResult result = launch(options);
    if (result.failure) print_failure(result, options.job.num_ranks > 1);
    return result.exit_code;
  } catch (const LaunchError& error) {
    print_error(error.what());
    return error.exit_code();
  }
}

void add_rank_options(CLI::App& app, LaunchCommand& command) {
  const OptionGroup ranks{app, "Ranks"};
  ranks.add("N", "-n,--ranks", command.job.num_ranks, parse_count, "How many processes, on all hosts together");
  ranks.add("R", "--replicas", command.job.num_replicas, parse_count, "Of the pipeline; each has N/R stages [1]");
  ranks.add("S", "--grace", command.grace_seconds, parse_grace,
            "From SIGTERM to SIGKILL for the others once a rank has failed [10]");
  ranks.add("S", "--timeout", command.job.timeout_seconds, parse_timeout,
            "For a rank to wait for another (GPIPE_TIMEOUT) [60]");
  ranks.add(
      "R", "--max-restarts", command.max_restarts, parse_index,
      "Start the job again after a failure, so many times; 'gpipe train --checkpoint-dir' goes on from its latest "
      "checkpoint [0]");
  ranks.add("N", "--min-ranks", command.min_ranks, parse_count,
            "With fewer ranks, but not fewer than these, if one cannot come back [1]");
  ranks.add_flag("--no-prefix", command.no_prefix, "Print lines without '[RANK] ' in front");
}

void add_network_options(CLI::App& app, LaunchCommand& command) {
  const OptionGroup network{app, "Network"};
  network.add("A,B,..", "--hosts", command.job.hosts, parse_hosts,
              "All of them, for the same command on each; N/hosts ranks are started here");
  network.add("I", "--host-index", command.job.host_index, parse_index,
              "Which of the hosts this is [found by its name]");
  network.add("FILE", "--secret-file", command.job.secret_file, parse_path,
              "Holds the secret that the hosts share; GPIPE_SECRET otherwise [a random one, on one host]");
  network.add("P", "--port", command.job.port, parse_port,
              "Where rank 0 waits for the others [a free one; 29500 with --hosts]");
  network.add("NAME", "--interface", command.job.network_interface, parse_path,
              "To bind to (GPIPE_INTERFACE) [lo; none with --hosts]");
}

}  // namespace

void add_launch_command(CLI::App& app, std::vector<std::string> program, Run& chosen) {
  const auto command = std::make_shared<LaunchCommand>();
  command->program = std::move(program);
  CLI::App& sub = *app.add_subcommand("launch");
  add_rank_options(sub, *command);
  add_network_options(sub, *command);
  set_help(
      sub,
      {"gpipe launch -n N [options] -- PROGRAM [arguments]",
       "Start a program as several ranks, and stay until all have ended.",
       "The ranks find their place in GPIPE_RANK, GPIPE_WORLD_SIZE and others, and in torchrun's variables. Their "
       "lines "
       "are printed as '[RANK] line'. Rank 0 reads standard input unless it is a terminal. Signals are passed on. The "
       "first rank that fails decides: the others are stopped, and its exit code (128 + the signal that killed it) is "
       "that of the command. 127: no such program, 126: not executable, 125: no rank could be started.",
       "  gpipe launch -n 4 -- ./train --epochs 3\n"
       "  gpipe launch -n 4 --replicas 2 -- ./train\n"
       "  gpipe launch -n 4 --max-restarts 3 -- gpipe train lm --checkpoint-dir run\n"
       "  gpipe launch -n 4 --hosts a,b --secret-file ~/.gpipe-secret -- ./train"});
  sub.callback([&sub, &chosen, command] {
    const std::vector<std::string> rest = sub.remaining();
    if (command->program.empty() && !rest.empty() && rest.front()[0] != '-') {
      throw UsageError(fmt::format("'{}' is not an option of 'gpipe launch'", rest.front()),
                       fmt::format("put '--' before the program: gpipe launch -n 4 -- {}", fmt::join(rest, " ")));
    }
    chosen = [command] { return run_launch(*command); };
  });
}

std::vector<std::string> split_off_program(int& argc, char** argv) {
  const std::string_view command = argc < 2 ? "" : argv[1];
  if (command != "launch" && command != "verify") return {};
  char** const end = argv + argc;
  char** const mark = std::find_if(argv + 2, end, [](const char* word) { return std::string_view(word) == "--"; });
  argc = static_cast<int>(mark - argv);
  return mark == end ? std::vector<std::string>() : std::vector<std::string>(mark + 1, end);
}

}  // namespace gpipe::cli
