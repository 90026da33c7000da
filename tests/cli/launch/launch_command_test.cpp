// gpipe launch: what the ranks find, what is printed, how it ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli/launch/rank_output.h"
#include "gpipe/os/file_descriptor.h"
#include "run_command.h"
#include "tests/cli/launch/running_command.h"
#include "tests/os/file_limits.h"

namespace gpipe::cli {
namespace {

using detail::FileDescriptor;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// `script` is run by /bin/sh.
Outcome launch(Arguments options, const std::string& script, const std::string& input = "",
               const Arguments& environment = {}) {
  options.insert(options.begin(), "launch");
  options.insert(options.end(), {"--", "/bin/sh", "-c", script});
  return run_gpipe(options, input, environment);
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A word that no other process has on its command line.
std::string unique_word() {
  static int number = 0;
  return "gpipe-test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

TEST(Launch, TellsEachRankItsPlace) {
  const Outcome outcome =
      launch({"-n", "3"}, "echo $GPIPE_RANK/$GPIPE_WORLD_SIZE $GPIPE_LOCAL_RANK/$GPIPE_LOCAL_WORLD_SIZE");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] 0/3 0/3", "[1] 1/3 1/3", "[2] 2/3 2/3"));
}

TEST(Launch, TellsTorchrunsPrograms) {
  const Outcome outcome = launch({"-n", "2", "--port", "4567"},
                                 "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT");
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] 0/2 0/2 127.0.0.1:4567", "[1] 1/2 1/2 127.0.0.1:4567"));
}

TEST(Launch, PassesItsOptionsOn) {
  const Outcome outcome = launch({"-n", "2", "--replicas", "2", "--timeout", "2.5", "--interface", "lo"},
                                 "echo $GPIPE_REPLICAS $GPIPE_TIMEOUT $GPIPE_INTERFACE");
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] 2 2.5 lo", "[1] 2 2.5 lo"));
}

TEST(Launch, GivesTheProgramItsOwnOptions) {
  const Outcome outcome = run_gpipe({"launch", "-n", "1", "--", "echo", "-n", "--help", "--", "train"});
  EXPECT_EQ(outcome.out, "[0] --help -- train\n");
}

TEST(Launch, ChoosesAFreePort) {
  EXPECT_THAT(launch({"-n", "1"}, "echo $GPIPE_MASTER_ADDR $GPIPE_MASTER_PORT $GPIPE_INTERFACE").out,
              MatchesRegex("\\[0\\] 127.0.0.1 [1-9][0-9]+ lo\n"));
}

TEST(Launch, MakesANewSecretWhichIsOnNoCommandLine) {
  const std::string script = "echo $GPIPE_SECRET";
  const std::string secret = launch({"-n", "1"}, script).out;
  EXPECT_THAT(secret, MatchesRegex("\\[0\\] [0-9a-f]+\n"));
  EXPECT_EQ(secret.size(), std::string("[0] \n").size() + 64);
  EXPECT_NE(launch({"-n", "1"}, script).out, secret);
  const Outcome shared = launch({"-n", "3"}, script);
  const std::vector<std::string> lines = sorted_lines(shared.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].substr(4), lines[2].substr(4));
  EXPECT_EQ(launch({"-n", "1"}, "for p in self $PPID; do grep -c $GPIPE_SECRET /proc/$p/cmdline; done").out,
            "[0] 1\n[0] 0\n");  // grep itself has it, the launcher does not
  EXPECT_EQ(launch({"-n", "1"}, script, "", {"GPIPE_SECRET=0123456789abcdef"}).out, "[0] 0123456789abcdef\n");
}

TEST(Launch, PrintsWholeLinesInTheOrderOfTheirRank) {
  const Outcome outcome =
      launch({"-n", "3"}, "i=0; while [ $i -lt 1000 ]; do echo \"out $i x\"; echo \"err $i x\" >&2; i=$((i+1)); done");
  EXPECT_EQ(outcome.exit_code, 0);
  for (const auto& [text, word] : {std::pair(outcome.out, "out"), std::pair(outcome.err, "err")}) {
    std::map<std::string, int> next;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      ASSERT_GT(line.size(), 4u);
      const std::string prefix = line.substr(0, 4);
      ASSERT_EQ(line.substr(4), std::string(word) + " " + std::to_string(next[prefix]) + " x");
      ++next[prefix];
    }
    EXPECT_THAT(next, ElementsAre(std::pair<const std::string, int>("[0] ", 1000),
                                  std::pair<const std::string, int>("[1] ", 1000),
                                  std::pair<const std::string, int>("[2] ", 1000)));
  }
}

TEST(Launch, PrintsALineWithoutAnEnd) {
  const Outcome outcome = launch({"-n", "1"}, "printf one; printf two >&2");
  EXPECT_EQ(outcome.out, "[0] one\n");
  EXPECT_EQ(outcome.err, "[0] two\n");
}

TEST(Launch, CutsVeryLongLines) {
  const Outcome outcome = launch({"-n", "1"}, "head -c 200000 /dev/zero | tr '\\0' x; echo");
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'x'), 200000);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 4);
  EXPECT_LE(longest_line(outcome.out), 65536u + 4u);
}

TEST(Launch, PrintsWithoutPrefixIfAsked) {
  EXPECT_EQ(launch({"-n", "2", "--no-prefix"}, "echo same").out, "same\nsame\n");
}

TEST(Launch, ColoursThePrefixOnATerminalOnly) {
  const Arguments command = {"launch", "-n", "1", "--", "echo", "hello"};
  EXPECT_EQ(run_gpipe_on_terminal(command, 80).out, "\x1b[36m[0]\x1b[0m hello\r\n");
  EXPECT_EQ(run_gpipe_on_terminal(command, 80, {"NO_COLOR=1"}).out, "[0] hello\r\n");
  EXPECT_EQ(run_gpipe(command).out, "[0] hello\n");
}

TEST(Launch, GivesStandardInputToRankZero) {
  const Outcome outcome = launch({"-n", "2"}, "cat; echo end", "hello\n");
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] end", "[0] hello", "[1] end"));
}

TEST(Launch, WorksWithClosedStandardStreams) {
  RunningCommand command(
      {"/bin/sh", "-c", "exec " GPIPE_COMMAND " launch -n 2 -- sh -c 'echo out; echo err >&2' <&- 2>&-"});
  const Outcome outcome = command.finish();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] out", "[1] out"));
}

TEST(Launch, EndsWithTheCodeOfTheFirstRankThatFails) {
  const std::string word = unique_word();
  const Outcome outcome =
      launch({"-n", "3"}, "if [ $RANK = 1 ]; then echo oh >&2; echo no >&2; exit 7; fi; sleep 1000; : " + word);
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, MatchesRegex("(.|\n)*gpipe: rank 1 \\(pid [0-9]+\\) ended with exit code 7; the others were "
                                        "stopped\n  its last lines on standard error:\n    oh\n    no\n"));
  EXPECT_THAT(processes_with(word), IsEmpty());
}

TEST(Launch, BadUsageIsToldByTheFirstRankAlone) {
  const Outcome outcome = launch({"-n", "4"}, "exec " GPIPE_COMMAND " schedule 1f1b --stages four --micro-batches 4");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[0] gpipe: --stages: 'four' is not a whole number"));
  for (const char* other : {"[1] ", "[2] ", "[3] "}) EXPECT_THAT(outcome.err, Not(HasSubstr(other)));
  const std::size_t first = outcome.err.find("'four'");
  EXPECT_EQ(outcome.err.find("'four'", first + 1), std::string::npos) << outcome.err;
}

TEST(Launch, BadInputIsToldByTheFirstRankAlone) {
  const Outcome outcome = launch({"-n", "3"}, "exec " GPIPE_COMMAND " schedule no-such --stages 2 --micro-batches 4");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[0] gpipe: there is no schedule \"no-such\""));
  for (const char* other : {"[1] ", "[2] "}) EXPECT_THAT(outcome.err, Not(HasSubstr(other)));
}

TEST(Launch, BadUsageOfOneRankAloneIsToldByIt) {
  const Outcome outcome =
      launch({"-n", "2"}, "[ $RANK = 0 ] && exec sleep 1000; exec " GPIPE_COMMAND " schedule 1f1b --stages four");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[1] gpipe: --stages: 'four' is not a whole number"));
}

TEST(Launch, EndsWith128AndTheSignalThatKilledARank) {
  const Outcome outcome = launch({"-n", "3"}, "if [ $RANK = 2 ]; then kill -9 $$; fi; sleep 1000");
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 2 (pid "), HasSubstr("was killed by signal 9 (Killed)"),
                                 HasSubstr("printed nothing to standard error")));
}

TEST(Launch, BlamesNoRankThatOnlyEndedBecauseAnotherFailed) {
  for (int round = 0; round < 20; ++round) {
    const Outcome outcome =
        launch({"-n", "4"}, "trap 'exit 9' TERM; if [ $RANK = 3 ]; then exit 5; fi; while :; do sleep 0.01; done");
    EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
  }
}

TEST(Launch, ShowsTheLastLinesOnlyAndNoControlCharacters) {
  const Outcome outcome = launch(
      {"-n", "1"}, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i >&2; done; printf '\\033[31mred' >&2; exit 1");
  const std::string message = outcome.err.substr(outcome.err.find("gpipe: "));
  EXPECT_THAT(message, HasSubstr("rank 0 (pid "));
  EXPECT_THAT(message, Not(HasSubstr("others")));
  EXPECT_THAT(message, Not(HasSubstr("line 3\n")));
  EXPECT_THAT(message, HasSubstr("    line 4\n"));
  EXPECT_THAT(message, HasSubstr("    \\x1b[31mred\n"));
}

// Rank 1 fails once rank 0 has set its trap.
std::string fail_when_trapped(const TemporaryFolder& folder, const std::string& trap) {
  const std::string file = folder.path("trapped");
  return "if [ $RANK = 1 ]; then until [ -e " + file + " ]; do sleep 0.01; done; exit 3; fi; trap '" + trap +
         "' TERM; touch " + file + "; while :; do sleep 0.01; done";
}

TEST(Launch, KillsARankThatIgnoresSigtermWhenTheGraceTimeIsOver) {
  const TemporaryFolder folder;
  const std::string word = unique_word();
  const Outcome outcome = launch({"-n", "2", "--grace", "0.2"}, fail_when_trapped(folder, "") + "; : " + word);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("did not end in 0.2 s and is killed"));
  EXPECT_THAT(processes_with(word), IsEmpty());
}

TEST(Launch, GivesTheOthersTheGraceTime) {
  const TemporaryFolder folder;
  const Outcome outcome =
      launch({"-n", "2", "--grace", "60"}, fail_when_trapped(folder, "sleep 0.2; echo saved; exit 0"));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, "[0] saved\n");
}

TEST(Launch, EndsWhatARankLeavesBehind) {
  const std::string word = unique_word();
  const std::string sleeper = "/bin/sh -c 'sleep 1000; : " + word + "'";
  const Outcome outcome = launch({"-n", "2"}, sleeper + " & setsid " + sleeper + " & echo started");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(sorted_lines(outcome.out), ElementsAre("[0] started", "[1] started"));
  EXPECT_THAT(processes_with(word), IsEmpty());
}

// A zombie in a rank's process group whose parent has left the group and never asks for it.
TEST(Launch, WaitsForNoZombie) {
  const TemporaryFolder folder;
  const std::string pid_file = folder.path("pid");
  const std::string go_file = folder.path("go");
  // The child ends when its parent is a program that waits for no child: a shell might.
  RunningCommand command(
      {GPIPE_COMMAND, "launch", "-n", "1", "--grace", "0.1", "--", "/bin/sh", "-c",
       "({ until test -e " + go_file + "; do sleep 0.01; done; } & echo $! > " + pid_file +
           "; exec setsid sleep 1000) & until grep -q '^sleep' /proc/$!/comm; do sleep 0.01; done; touch " + go_file +
           "; until grep -q '^State:.Z' /proc/$(cat " + pid_file + ")/status; do sleep 0.01; done; echo done"});
  const Outcome outcome = command.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] done\n");
}

TEST(Launch, LeavesAloneWhatWasThereBefore) {
  const std::string word = unique_word();
  RunningCommand command({"/bin/sh", "-c",
                          "/bin/sh -c 'echo before; while :; do sleep 0.1; done; : " + word +
                              "' & exec " GPIPE_COMMAND " launch -n 2 -- true"});
  ASSERT_TRUE(command.prints("before"));
  EXPECT_EQ(command.finish().exit_code, 0);
  const std::vector<int> left = processes_with(word);
  EXPECT_EQ(left.size(), 1u);
  for (const int pid : left) kill(pid, SIGKILL);
}

TEST(Launch, SaysThatThereIsNoSuchProgram) {
  const Outcome nowhere = run_gpipe({"launch", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(nowhere.exit_code, 127);
  EXPECT_EQ(nowhere.out, "");
  EXPECT_THAT(nowhere.err, AllOf(StartsWith("gpipe: "), HasSubstr("no program 'no-such-program' in PATH")));
  EXPECT_EQ(run_gpipe({"launch", "-n", "2", "--", "./no-such-program"}).exit_code, 127);
}

TEST(Launch, SaysThatAProgramCannotBeExecuted) {
  const TemporaryFolder folder;
  const Outcome outcome = run_gpipe({"launch", "-n", "2", "--", folder.write("data", "x")});
  EXPECT_EQ(outcome.exit_code, 126);
  EXPECT_THAT(outcome.err, HasSubstr("cannot be executed: Permission denied"));
  EXPECT_EQ(run_gpipe({"launch", "-n", "1", "--", folder.path("")}).exit_code, 126);
}

TEST(Launch, EndsWhenNobodyReadsItsOutput) {
  RunningCommand command({"/bin/bash", "-c", GPIPE_COMMAND " launch -n 2 -- yes | head -2; echo ${PIPESTATUS[0]}"});
  EXPECT_THAT(command.finish().out, HasSubstr("y\n141\n"));
}

TEST(Launch, SaysThatItsOutputHasNoRoom) {
  const Outcome outcome = run_gpipe_into("/dev/full", {"launch", "-n", "1", "--", "echo", "hello"});
  EXPECT_EQ(outcome.exit_code, 0);  // that of the rank
  EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output: No space left on device"));
  EXPECT_EQ(run_gpipe_into("/dev/full", {"launch", "-n", "1", "--", "sh", "-c", "echo hello; exit 7"}).exit_code, 7);
}

TEST(Launch, DropsWhatHasNoRoomSaysSoOnceAndTheRanksGoOn) {
  const TemporaryFolder folder;
  const std::string script =
      "for line in $(seq 2000); do echo line $line; done; : > " + folder.path("done-") + "$GPIPE_RANK; echo end >&2";
  const std::string out = folder.write("out", "");
  Outcome outcome;
  {
    const FileSizeLimit limit(1000);
    outcome = run_gpipe_into(out, {"launch", "-n", "2", "--", "/bin/sh", "-c", script});
  }
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(folder.path("done-0")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("done-1")));
  EXPECT_EQ(read_file(out).size(), 1000u);
  EXPECT_THAT(
      sorted_lines(outcome.err),
      ElementsAre("[0] end", "[1] end",
                  "gpipe: cannot write to standard output: File too large; what has no room is dropped, and the "
                  "ranks go on"));
}

TEST(Launch, GoesOnWritingWhenThereIsRoomAgain) {
  OutputQueue queue;
  const TemporaryFolder folder;
  const FileDescriptor file(open(folder.path("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const auto write_all = [&] {
    while (!queue.empty()) queue.write_some();
  };
  {
    const FileSizeLimit limit(10);
    for (const char* line : {"1234567\n", "abcdefg\n", "dropped\n"}) {
      queue.add(file.get(), line);
      write_all();
    }
  }
  queue.add(file.get(), "again\n");
  queue.add(file.get(), "and again\n");
  write_all();
  EXPECT_EQ(read_file(folder.path("out")), "1234567\nab\nagain\nand again\n");
  EXPECT_EQ(queue.error(), EFBIG);
  EXPECT_EQ(queue.error_fd(), file.get());
}

void expect_bad_usage(const Outcome& outcome, const std::string& message) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(StartsWith("gpipe: "), HasSubstr(message)));
}

TEST(Launch, RefusesWhatCannotBe) {
  expect_bad_usage(run_gpipe({"launch"}), "-n is missing");
  expect_bad_usage(run_gpipe({"launch", "-n", "2"}), "which program?");
  expect_bad_usage(run_gpipe({"launch", "-n", "2", "--", ""}), "'' is not the name of a program");
  expect_bad_usage(run_gpipe({"launch", "-n", "2", "echo"}), "put '--' before the program: gpipe launch -n 4 -- echo");
  expect_bad_usage(run_gpipe({"launch", "-n", "0", "--", "true"}), "-n: '0' is not a whole number");
  expect_bad_usage(run_gpipe({"launch", "-n", "1000000", "--", "true"}), "more than 1024 ranks");
  expect_bad_usage(run_gpipe({"launch", "--rank", "2", "--", "true"}), "did you mean '--ranks'?");
  expect_bad_usage(launch({"-n", "4", "--replicas", "3"}, "true"), "--replicas 3 does not divide the 4 ranks");
  expect_bad_usage(launch({"-n", "4", "--port", "65536"}, "true"), "--port: '65536' is not a port");
  expect_bad_usage(launch({"-n", "4", "--timeout", "0"}, "true"), "--timeout: '0' is not above 0");
  expect_bad_usage(launch({"-n", "4", "--grace", "-1"}, "true"), "--grace: '-1' is not a number of seconds");
  expect_bad_usage(launch({"-n", "4", "--interface", "nosuch0"}, "true"), "no network interface 'nosuch0'");
  expect_bad_usage(launch({"-n", "4", "--host-index", "1"}, "true"), "--host-index 1 of 1 host");
}

TEST(Launch, RefusesVariablesThatTheRanksCouldNotUse) {
  expect_bad_usage(launch({"-n", "4"}, "true", "", {"GPIPE_REPLICAS=3"}), "GPIPE_REPLICAS is 3");
  expect_bad_usage(launch({"-n", "4"}, "true", "", {"GPIPE_TIMEOUT=soon"}), "GPIPE_TIMEOUT is 'soon'");
  expect_bad_usage(launch({"-n", "4"}, "true", "", {"GPIPE_SECRET=short"}), "the secret of GPIPE_SECRET is not");
}

TEST(Launch, StartsTheRanksOfOneHostOfSeveral) {
  const std::string script =
      "echo $GPIPE_RANK/$GPIPE_WORLD_SIZE $GPIPE_LOCAL_RANK/$GPIPE_LOCAL_WORLD_SIZE $GPIPE_HOST "
      "$MASTER_ADDR:$MASTER_PORT";
  const Arguments secret = {"GPIPE_SECRET=0123456789abcdef"};
  const Outcome first =
      launch({"-n", "4", "--hosts", "a,b", "--host-index", "0", "--port", "4000"}, script, "", secret);
  EXPECT_THAT(sorted_lines(first.out), ElementsAre("[0] 0/4 0/2 a a:4000", "[1] 1/4 1/2 a a:4000"));
  const Outcome second = launch({"-n", "4", "--hosts", "a,b", "--host-index", "1"}, script, "", secret);
  EXPECT_THAT(sorted_lines(second.out), ElementsAre("[2] 2/4 0/2 b a:29500", "[3] 3/4 1/2 b a:29500"));
}

TEST(Launch, FindsThisHostByItsName) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  const std::string own = name;
  const Arguments secret = {"GPIPE_SECRET=0123456789abcdef"};
  EXPECT_EQ(launch({"-n", "2", "--hosts", "first.invalid," + own}, "echo here", "", secret).out, "[1] here\n");
  expect_bad_usage(launch({"-n", "2", "--hosts", "first.invalid,second.invalid"}, "true", "", secret),
                   "add --host-index");
}

TEST(Launch, RefusesHostsThatCannotBe) {
  const Arguments secret = {"GPIPE_SECRET=0123456789abcdef"};
  const Arguments both = {"--hosts", "a,b", "--host-index", "0"};
  const auto with = [](Arguments options, const Arguments& more) {
    options.insert(options.end(), more.begin(), more.end());
    return options;
  };
  expect_bad_usage(launch(with(both, {"-n", "2"}), "true"), "needs a secret that the hosts share");
  expect_bad_usage(launch(with(both, {"-n", "3"}), "true", "", secret),
                   "3 ranks cannot be shared out evenly to 2 hosts");
  expect_bad_usage(launch({"-n", "2", "--hosts", "a,a"}, "true", "", secret), "'a' is there twice");
  expect_bad_usage(launch({"-n", "2", "--hosts", "a,"}, "true", "", secret), "'' is not the name");
}

TEST(Launch, ReadsTheSecretFromAFileThatNobodyElseMayUse) {
  const TemporaryFolder folder;
  const std::string file = folder.write("secret", "0123456789abcdef\n");
  const Arguments options = {"-n", "1", "--hosts", "a", "--host-index", "0", "--secret-file", file};
  chmod(file.c_str(), 0640);
  expect_bad_usage(launch(options, "true"), "others than its owner may use");
  chmod(file.c_str(), 0600);
  EXPECT_EQ(launch(options, "echo $GPIPE_SECRET").out, "[0] 0123456789abcdef\n");
  folder.write("secret", "short\n");
  expect_bad_usage(launch(options, "true"), "is not one line of 16 letters or more");
  folder.write("secret", "");
  expect_bad_usage(launch(options, "true"), "is not one line of 16 letters or more");
  expect_bad_usage(launch({"-n", "1", "--secret-file", folder.path("none")}, "true"), "cannot read");
}

TEST(Launch, EndsTwoHundredTimesInARow) {
  for (int round = 0; round < 200; ++round) {
    const int code = round % 3;
    const Outcome outcome =
        launch({"-n", "2"}, "echo $RANK; if [ $RANK = 1 ]; then exit " + std::to_string(code) + "; fi");
    ASSERT_EQ(outcome.exit_code, code) << outcome.err;
    if (code != 0) continue;
    ASSERT_THAT(sorted_lines(outcome.out), ElementsAre("[0] 0", "[1] 1"));
  }
}

}  // namespace
}  // namespace gpipe::cli
