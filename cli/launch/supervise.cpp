#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>

#include "cli/launch/launch.h"
#include "cli/launch/rank_output.h"

namespace gpipe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostQueuedBytes = std::size_t{1} << 20;  // more than that, and the ranks have to wait
constexpr int kLookAgainMilliseconds = 20;                      // at groups that have lost their first process

struct Rank {
  Rank(RankProcess process, const LaunchOptions& options, OutputQueue& queue)
      : number(process.rank),
        pid(process.pid),
        out(std::move(process.out), STDOUT_FILENO, options.prefix ? rank_prefix(number, options.colour_out) : "",
            queue),
        err(std::move(process.err), STDERR_FILENO, options.prefix ? rank_prefix(number, options.colour_err) : "",
            queue) {}

  const int number;
  const pid_t pid;
  RankOutput out;
  RankOutput err;
  bool has_ended = false;  // the first process of its group
  bool is_gone = false;    // and all the others
  int status = 0;
  std::optional<Clock::time_point> kill_at;
  std::optional<Clock::time_point> killed_at;
};

class Supervisor {
 public:
  Supervisor(std::vector<RankProcess> ranks, const SignalQueue& signals, Guard& guard, const LaunchOptions& options)
      : signals_(signals), guard_(guard), options_(options) {
    for (RankProcess& rank : ranks) ranks_.push_back(std::make_unique<Rank>(std::move(rank), options, queue_));
  }

  LaunchResult run() {
    while (!is_done()) {
      wait();
      handle_signals();
      reap();
      read_output();
      kill_the_late();
      look_for_the_gone();
      refuse_output();
      tell_of_dropped_output();
      drop_late_output();
    }
    if (result_.failure) {
      const std::deque<std::string>& lines = find(result_.failure->pid)->err.last_lines();
      result_.failure->last_lines.assign(lines.begin(), lines.end());
      result_.exit_code = result_.failure->exit_code;
    }
    return result_;
  }

 private:
  template <typename Visit>
  void for_each_output(Visit visit) {
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      for (RankOutput* output : {&rank->out, &rank->err}) {
        if (output->is_open()) visit(*rank, *output);
      }
    }
  }

  bool is_done() const {
    return queue_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [](const std::unique_ptr<Rank>& rank) {
             return rank->is_gone && !rank->out.is_open() && !rank->err.is_open();
           });
  }

  Rank* find(pid_t pid) {
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      if (rank->pid == pid) return rank.get();
    }
    return nullptr;
  }

  // Until the next thing to do that no file descriptor announces; -1 if there is none.
  int wait_milliseconds() const {
    double milliseconds = -1;
    const auto at_most = [&](double limit) { milliseconds = milliseconds < 0 ? limit : std::min(milliseconds, limit); };
    const auto until = [&](Clock::time_point time) {
      at_most(std::max(0.0, std::ceil(std::chrono::duration<double, std::milli>(time - Clock::now()).count())));
    };
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      const bool is_open = rank->out.is_open() || rank->err.is_open();
      if (rank->is_gone && is_open && may_read()) at_most(0);  // nobody is left who could write
      if (rank->has_ended && !rank->is_gone) at_most(kLookAgainMilliseconds);
      if (rank->kill_at && !rank->is_gone) until(*rank->kill_at);
    }
    if (drop_output_at_ && all_gone()) until(*drop_output_at_);
    return static_cast<int>(std::min(milliseconds, 1e6));
  }

  bool may_read() const { return queue_.num_bytes() < kMostQueuedBytes; }

  void wait() {
    std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
    if (!queue_.empty()) files.push_back({queue_.next_fd(), POLLOUT, 0});
    if (may_read()) {
      for_each_output([&](const Rank&, const RankOutput& output) { files.push_back({output.fd(), POLLIN, 0}); });
    }
    if (poll(files.data(), files.size(), wait_milliseconds()) > 0 && !queue_.empty() && files[1].revents != 0) {
      queue_.write_some();
    }
  }

  // A few reads a turn, so that one rank that prints without end leaves the others and the signals their turn.
  void read_output() {
    constexpr int kMostReads = 8;
    for_each_output([&](const Rank& rank, RankOutput& output) {
      bool more = true;
      for (int reads = 0; more && reads < kMostReads && may_read(); ++reads)
        more = output.is_open() && output.read_some();
      // A process that left the group may hold the other end open for ever.
      if (!more && rank.is_gone && output.is_open()) output.close();
    });
  }

  // Who prints for a reader that is gone (`| head`) is told so, as it would be without a launcher.
  void refuse_output() {
    for_each_output([&](const Rank&, RankOutput& output) {
      if (queue_.has_no_reader(output.target())) output.close();
    });
  }

  // A full disk is no reason for the ranks to end.
  void tell_of_dropped_output() {
    if (has_told_ || queue_.error() == 0) return;
    has_told_ = true;
    note(fmt::format("cannot write to standard {}: {}; what has no room is dropped, and the ranks go on",
                     queue_.error_fd() == STDOUT_FILENO ? "output" : "error", std::strerror(queue_.error())));
  }

  void note(const std::string& text) { queue_.add(STDERR_FILENO, fmt::format("gpipe: {}\n", text)); }

  void handle_signals() {
    for (int signal; (signal = signals_.next()) != 0;) {
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) {
        interrupt(signal);
      } else if (signal != SIGCHLD) {
        send_all(signal);
        if (signal == SIGTSTP) raise(SIGSTOP);
      }
    }
  }

  void interrupt(int signal) {
    const bool is_second = result_.interrupted_by != 0;
    if (!is_second) result_.interrupted_by = signal;
    drop_output_at_ = is_second ? Clock::now() : Clock::now() + grace();
    stop_all(is_second ? SIGKILL : signal);
  }

  // Who interrupts the launcher does not wait for a reader that takes its time.
  void drop_late_output() {
    if (!drop_output_at_ || Clock::now() < *drop_output_at_ || !all_gone()) return;
    for_each_output([](const Rank&, RankOutput& output) { output.close(); });
    queue_.clear();
  }

  Clock::duration grace() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.grace_seconds));
  }

  bool all_gone() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const std::unique_ptr<Rank>& rank) { return rank->is_gone; });
  }

  static void send(Rank& rank, int signal) {
    if (rank.is_gone) return;
    kill(-rank.pid, signal);
    if (signal == SIGKILL && !rank.killed_at) rank.killed_at = Clock::now();
  }

  void send_all(int signal) {
    for (const std::unique_ptr<Rank>& rank : ranks_) send(*rank, signal);
  }

  void stop(Rank& rank, int signal) {
    send(rank, signal);
    send(rank, SIGCONT);  // one that is stopped would not notice
    if (!rank.kill_at) rank.kill_at = Clock::now() + grace();
  }

  void stop_all(int signal) {
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      if (!rank->is_gone) stop(*rank, signal);
    }
  }

  // All that have ended. Of several that failed since the last look, one that a signal ended is more likely the cause.
  void reap() {
    Rank* failed = nullptr;
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      Rank* rank = find(pid);
      if (rank == nullptr || rank->has_ended) continue;  // an orphan of a rank
      rank->has_ended = true;
      rank->status = status;
      if (status == 0) continue;
      const bool is_better = failed == nullptr || (WIFSIGNALED(status) && !WIFSIGNALED(failed->status)) ||
                             (WIFSIGNALED(status) == WIFSIGNALED(failed->status) && rank->number < failed->number);
      if (is_better) failed = rank;
    }
    if (failed != nullptr && !result_.failure) fail(*failed);
  }

  void fail(const Rank& rank) {
    RankFailure failure;
    failure.rank = rank.number;
    failure.pid = rank.pid;
    failure.signal = WIFSIGNALED(rank.status) ? WTERMSIG(rank.status) : 0;
    failure.exit_code = failure.signal != 0 ? 128 + failure.signal : WEXITSTATUS(rank.status);
    result_.failure = failure;
    if (result_.interrupted_by == 0) stop_all(SIGTERM);  // otherwise they were asked already
  }

  void kill_the_late() {
    const Clock::time_point now = Clock::now();
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      if (rank->is_gone || !rank->kill_at || now < *rank->kill_at) continue;
      if (!rank->has_ended)
        note(fmt::format("rank {} (pid {}) did not end in {} s and is killed", rank->number, rank->pid,
                         options_.grace_seconds));
      send(*rank, SIGKILL);
      rank->kill_at = Clock::time_point::max();
    }
  }

  void look_for_the_gone() {
    for (const std::unique_ptr<Rank>& rank : ranks_) {
      if (!rank->has_ended || rank->is_gone) continue;
      // What was killed and is still there is a zombie, whose parent, outside of the group, does not care.
      const bool only_zombies = rank->killed_at && Clock::now() - *rank->killed_at > std::chrono::seconds(1);
      if (only_zombies || kill(-rank->pid, 0) != 0) {
        rank->is_gone = true;
        guard_.forget(rank->pid);
      } else if (!rank->kill_at) {
        stop(*rank, SIGTERM);
      }
    }
  }

  const SignalQueue& signals_;
  Guard& guard_;
  const LaunchOptions& options_;
  OutputQueue queue_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<Clock::time_point> drop_output_at_;
  bool has_told_ = false;  // of output that was dropped
  LaunchResult result_;
};

}  // namespace

LaunchResult supervise(std::vector<RankProcess> ranks, const SignalQueue& signals, Guard& guard,
                       const LaunchOptions& options) {
  return Supervisor(std::move(ranks), signals, guard, options).run();
}

}  // namespace gpipe::cli
