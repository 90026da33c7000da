// gpipe launch under signals: they reach the ranks, and whatever happens to the launcher, nobody is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cli/launch/running_command.h"
#include "tests/os/comes_true.h"

namespace gpipe::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Arguments of `gpipe launch` for a script of /bin/sh; its processes have `word` on their command lines.
Arguments launch(Arguments options, const std::string& script, const std::string& word) {
  options.insert(options.begin(), {GPIPE_COMMAND, "launch"});
  options.insert(options.end(), {"--", "/bin/sh", "-c", script + "\n: " + word});
  return options;
}

std::string unique_word() {
  static int number = 0;
  return "gpipe-signal-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

TEST(LaunchSignal, ThatAsksToEndReachesEveryRank) {
  for (const auto& [signal, name] :
       {std::pair(SIGINT, "INT"), std::pair(SIGTERM, "TERM"), std::pair(SIGHUP, "HUP"), std::pair(SIGQUIT, "QUIT")}) {
    const std::string word = unique_word();
    RunningCommand command(launch(
        {"-n", "3"},
        std::string("trap 'echo got ") + name + "; exit 0' " + name + "; echo ready; while :; do sleep 0.01; done",
        word));
    ASSERT_TRUE(command.prints("ready", 3));
    command.send(signal);
    const Outcome outcome = command.finish();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const char* rank : {"[0]", "[1]", "[2]"})
      EXPECT_THAT(outcome.out, HasSubstr(std::string(rank) + " got " + name));
    EXPECT_THAT(processes_with(word), IsEmpty());
  }
}

TEST(LaunchSignal, ThatEndsTheRanksIsTheExitCode) {
  RunningCommand command(launch({"-n", "2"}, "echo ready; sleep 1000", unique_word()));
  ASSERT_TRUE(command.prints("ready", 2));
  command.send(SIGTERM);
  const Outcome outcome = command.finish();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, HasSubstr("signal 15 (Terminated) was passed on to the ranks"));
}

TEST(LaunchSignal, OfTheUserIsPassedOnAndNobodyEnds) {
  RunningCommand command(launch(
      {"-n", "2"}, "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; while :; do sleep 0.01; done",
      unique_word()));
  ASSERT_TRUE(command.prints("ready", 2));
  command.send(SIGUSR1);
  ASSERT_TRUE(command.prints("one", 2));
  command.send(SIGUSR1);
  ASSERT_TRUE(command.prints("one", 4));
  command.send(SIGUSR2);
  EXPECT_EQ(command.finish().exit_code, 0);
}

TEST(LaunchSignal, StopsAndContinuesAll) {
  // A rank is one process: a shell would not show that it is stopped while it starts another one.
  RunningCommand command({GPIPE_COMMAND, "launch", "-n", "2", "--", "/bin/sh", "-c", "echo pid $$; exec sleep 1000"});
  ASSERT_TRUE(command.prints("pid", 2));
  std::vector<int> pids = {command.pid()};
  for (const std::string prefix : {"[0] pid ", "[1] pid "}) {
    pids.push_back(std::stoi(command.out().substr(command.out().find(prefix) + prefix.size())));
  }
  command.send(SIGTSTP);
  for (const int pid : pids) EXPECT_TRUE(becomes(pid, 'T'));
  command.send(SIGCONT);
  for (const int pid : pids) EXPECT_TRUE(becomes(pid, 'S'));
  command.send(SIGTERM);
  EXPECT_EQ(command.finish().exit_code, 128 + SIGTERM);
}

TEST(LaunchSignal, ReachesARankThatIsStopped) {
  const std::string word = unique_word();
  RunningCommand command(launch(
      {"-n", "2"}, "if [ $RANK = 0 ]; then kill -STOP $$; fi; echo running; while :; do sleep 0.01; done", word));
  ASSERT_TRUE(command.prints("[1] running"));
  command.send(SIGTERM);
  EXPECT_EQ(command.finish().exit_code, 128 + SIGTERM);
  EXPECT_THAT(processes_with(word), IsEmpty());
}

TEST(LaunchSignal, ForTheSecondTimeKillsAtOnce) {
  const std::string word = unique_word();
  RunningCommand command(
      launch({"-n", "2", "--grace", "1000"}, "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done", word));
  ASSERT_TRUE(command.prints("ready", 2));
  command.send(SIGINT);
  ASSERT_TRUE(command.prints("no", 2));
  command.send(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 128 + SIGKILL);
  EXPECT_THAT(processes_with(word), IsEmpty());
}

TEST(LaunchSignal, ThatIsIgnoredKillsWhenTheGraceTimeIsOver) {
  const std::string word = unique_word();
  RunningCommand command(
      launch({"-n", "2", "--grace", "0.2"}, "trap '' TERM; echo ready; while :; do sleep 0.01; done", word));
  ASSERT_TRUE(command.prints("ready", 2));
  command.send(SIGTERM);
  const Outcome outcome = command.finish();
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, HasSubstr("did not end in 0.2 s and is killed"));
  EXPECT_THAT(processes_with(word), IsEmpty());
}

TEST(LaunchSignal, OfAHangupStaysIgnoredUnderNohup) {
  const TemporaryFolder folder;
  const std::string script = "echo ready; until [ -e " + folder.path("go") + " ]; do sleep 0.01; done; echo done";
  RunningCommand command(
      {"/bin/sh", "-c", "trap '' HUP; exec " GPIPE_COMMAND " launch -n 1 -- /bin/sh -c '" + script + "'"});
  ASSERT_TRUE(command.prints("ready"));
  command.send(SIGHUP);
  folder.write("go", "");
  const Outcome outcome = command.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] ready\n[0] done\n");
}

TEST(LaunchSignal, EndsALauncherWhoseOutputNobodyTakes) {
  const std::string word = unique_word();
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  const int reader = open(folder.path("pipe").c_str(), O_RDWR | O_CLOEXEC);
  RunningCommand command(
      {"/bin/sh", "-c", "exec " GPIPE_COMMAND " launch -n 2 --grace 0.2 -- yes " + word + " > " + folder.path("pipe")});
  // The launcher, its guard and the ranks; then until the pipe is full and all of them wait.
  ASSERT_TRUE(test::comes_true([&] { return processes_with(word).size() >= 4u; }));
  for (const int pid : processes_with(word)) EXPECT_TRUE(becomes(pid, 'S'));
  command.send(SIGTERM);
  EXPECT_EQ(command.finish().exit_code, 128 + SIGTERM);
  EXPECT_THAT(processes_with(word), IsEmpty());
  close(reader);
}

// Kill -9 of the launcher at some moment: its ranks, and what they started, end.
TEST(LaunchSignal, ThatKillsTheLauncherLeavesNoOrphan) {
  for (int round = 0; round < 10; ++round) {
    const std::string word = unique_word();
    RunningCommand command(
        launch({"-n", "3"}, "trap '' TERM INT HUP; /bin/sh -c 'sleep 1000; : " + word + "' & echo ready; wait", word));
    ASSERT_TRUE(command.prints("ready", 3));
    command.send(SIGKILL);
    EXPECT_EQ(command.finish().exit_code, 128 + SIGKILL);
    EXPECT_TRUE(all_end(word)) << "round " << round;
  }
}

TEST(LaunchSignal, ThatKillsTheLauncherWhileItStartsLeavesNoOrphan) {
  for (int round = 0; round < 30; ++round) {
    const std::string word = unique_word();
    RunningCommand command(launch({"-n", "8"}, "sleep 1000 & wait", word));
    usleep(static_cast<useconds_t>(400 * round));  // each time at another moment of its start
    command.send(SIGKILL);
    EXPECT_EQ(command.finish().exit_code, 128 + SIGKILL);
    EXPECT_TRUE(all_end(word)) << "round " << round;
  }
}

// One rank after the other: the launcher names it and ends the others.
TEST(LaunchSignal, ThatKillsARankEndsTheOthers) {
  for (int rank = 0; rank < 3; ++rank) {
    const std::string word = unique_word();
    RunningCommand command(launch({"-n", "3"}, "echo pid $$ ready; sleep 1000", word));
    ASSERT_TRUE(command.prints("ready", 3));
    const std::string prefix = "[" + std::to_string(rank) + "] pid ";
    const int pid = std::stoi(command.out().substr(command.out().find(prefix) + prefix.size()));
    kill(pid, SIGKILL);
    const Outcome outcome = command.finish();
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
    EXPECT_THAT(outcome.err, HasSubstr("rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
                                       ") was killed by signal 9"));
    EXPECT_TRUE(all_end(word));
  }
}

}  // namespace
}  // namespace gpipe::cli
