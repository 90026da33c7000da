// What all commands share: help, suggestions, exit codes, where output goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>

#include "cli/failure.h"
#include "run_command.h"
#include "tests/os/file_limits.h"

namespace gpipe::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const char* const kCommands[] = {"schedule", "check", "simulate", "plan", "bleu", "launch", "verify", "doctor"};

void expect_bad_usage(const Outcome& outcome, const std::string& message, const std::string& hint) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, StartsWith("gpipe: "));
  EXPECT_THAT(outcome.err, HasSubstr(message));
  EXPECT_THAT(outcome.err, HasSubstr("\n  "));
  EXPECT_THAT(outcome.err, HasSubstr(hint));
  EXPECT_EQ(outcome.out, "");
}

TEST(Command, AloneExplainsItselfOnStandardError) {
  const Outcome outcome = run_gpipe({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("Usage: gpipe COMMAND"));
  for (const char* command : kCommands) EXPECT_THAT(outcome.err, HasSubstr(command));
}

TEST(Command, HelpOfEveryCommandHasUsageAndExamplesWithin80Columns) {
  for (const char* flag : {"-h", "--help"}) {
    EXPECT_EQ(run_gpipe({flag}).exit_code, 0);
    EXPECT_LE(longest_line(run_gpipe({flag}).out), 80u);
    for (const std::string command : kCommands) {
      const Outcome outcome = run_gpipe({command, flag});
      EXPECT_EQ(outcome.exit_code, 0) << command;
      EXPECT_EQ(outcome.err, "") << command;
      EXPECT_THAT(outcome.out, HasSubstr("Usage: gpipe " + command));
      EXPECT_THAT(outcome.out, HasSubstr("Examples:\n  gpipe "));
      EXPECT_LE(longest_line(outcome.out), 80u) << outcome.out;
    }
  }
}

TEST(Command, HelpIsGivenEvenNextToAnOptionThatCannotBeUsed) {
  const Outcome outcome = run_gpipe({"schedule", "--stages", "abc", "--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("Usage: gpipe schedule"));
}

TEST(Command, HelpSaysThatStagesAreWorkersAndChunksMultiplyThem) {
  EXPECT_THAT(run_gpipe({"schedule", "--help"}).out, HasSubstr("K x V stages"));
}

TEST(Command, PrintsItsVersion) {
  const Outcome outcome = run_gpipe({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, StartsWith("gpipe 0."));
}

TEST(Command, AnswersAnUnknownCommandWithTheNearestOne) {
  expect_bad_usage(run_gpipe({"shedule", "gpipe"}), "unknown command 'shedule'", "did you mean 'schedule'?");
  expect_bad_usage(run_gpipe({"simulat"}), "unknown command 'simulat'", "did you mean 'simulate'?");
}

TEST(Command, ListsTheCommandsWhenNoneIsNear) {
  const Outcome outcome = run_gpipe({"frobnicate"});
  expect_bad_usage(outcome, "unknown command 'frobnicate'",
                   "the commands are schedule, check, simulate, plan, bleu, launch, verify, doctor");
  EXPECT_THAT(outcome.err, Not(HasSubstr("did you mean")));
  std::istringstream lines(outcome.err);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Command, AnswersAnUnknownOptionWithTheNearestOne) {
  expect_bad_usage(run_gpipe({"schedule", "gpipe", "--stage", "4", "--micro-batches", "8"}),
                   "unknown option '--stage' of 'gpipe schedule'", "did you mean '--stages'?");
  expect_bad_usage(run_gpipe({"simulate", "1f1b", "--stages", "4", "--microbatches=8"}),
                   "unknown option '--microbatches'", "did you mean '--micro-batches'?");
  expect_bad_usage(run_gpipe({"check", "-", "--cannonical"}), "unknown option '--cannonical'", "'--canonical'");
  expect_bad_usage(run_gpipe({"plan", "--memory-limt", "2GiB"}), "unknown option '--memory-limt'", "'--memory-limit'");
  expect_bad_usage(run_gpipe({"doctor", "-x"}), "unknown option '-x' of 'gpipe doctor'", "gpipe doctor --help");
}

TEST(Command, SaysThatOptionsComeAfterTheCommand) {
  expect_bad_usage(run_gpipe({"--json", "simulate", "1f1b"}), "unknown option '--json' of 'gpipe'",
                   "those of a command come after its name");
}

TEST(Command, RefusesAnArgumentTooMany) {
  expect_bad_usage(run_gpipe({"schedule", "gpipe", "1f1b", "--stages", "2", "--micro-batches", "2"}),
                   "unexpected argument '1f1b'", "gpipe schedule --help");
  expect_bad_usage(run_gpipe({"check", "a", "b"}), "unexpected argument 'b'", "gpipe check --help");
  expect_bad_usage(run_gpipe({"doctor", "now"}), "unexpected argument 'now'", "gpipe doctor --help");
}

TEST(Command, RefusesAnOptionWithoutItsValueOrGivenTwice) {
  expect_bad_usage(run_gpipe({"schedule", "gpipe", "--stages"}), "--stages needs a value", "--help");
  expect_bad_usage(run_gpipe({"schedule", "gpipe", "--stages", "2", "--stages", "3"}),
                   "--stages is given more than once", "--help");
}

TEST(Command, TakesFileNamesAfterTwoDashes) {
  EXPECT_THAT(run_gpipe({"check", "--", "--file"}).err, HasSubstr("cannot read '--file'"));
  EXPECT_EQ(run_gpipe({"check", "--", "-"}, "F0 B0\n").exit_code, 0);
}

TEST(Command, RefusesAnEmptyFileName) {
  for (const Arguments& arguments : {Arguments{"schedule", "gpipe", "--output", ""},
                                     Arguments{"simulate", "--file", ""}, Arguments{"simulate", "1f1b", "--trace", ""},
                                     Arguments{"simulate", "1f1b", "--svg", ""}, Arguments{"plan", "--profile", ""}}) {
    expect_bad_usage(run_gpipe(arguments), "'' is not the name of a file", "--help");
  }
}

TEST(Command, EveryCommandEndsWithTheSameCodeIfAFileIsNotThere) {
  const TemporaryFolder folder;
  const std::string none = folder.path("none");
  for (const Arguments& arguments :
       {Arguments{"check", none}, Arguments{"simulate", "--file", none},
        Arguments{"simulate", "1f1b", "--stages", "2", "--micro-batches", "2", "--profile", none},
        Arguments{"plan", "--profile", none, "--stages", "2", "--micro-batches", "2"},
        Arguments{"bleu", "--reference", none, none}}) {
    expect_bad_usage(run_gpipe(arguments), "cannot read '" + none + "': No such file or directory", "name a file");
  }
  EXPECT_THAT(run_gpipe({"--help"}).out, HasSubstr("a file or data set that is not there"));
}

TEST(Command, CallsOptionsInErrorsAsTheyAreTyped) {
  const TemporaryFolder folder;
  const std::string profile = folder.write(
      "profile.json", R"({"layers": [{"name": "a", "forward_seconds": 1, "backward_seconds": 2, "parameter_bytes": 8,
                                      "activation_bytes": 16, "output_bytes": 4}]})");
  const Outcome speeds =
      run_gpipe({"plan", "--profile", profile, "--stages", "1", "--micro-batches", "2", "--worker-speed", "1,1"});
  EXPECT_THAT(speeds.err, HasSubstr("--worker-speed has 2 numbers for 1 worker"));
}

TEST(OptionNames, StandForTheLibrarysNamesWhereTheCommandHasThem) {
  CLI::App app("", "gpipe");
  CLI::App& train = *app.add_subcommand("train");
  for (const char* option : {"--stages", "--micro-batches", "--balance"}) train.add_flag(option);
  app.parse("train");
  const auto text = [&](const char* message) { return with_option_names(message, app); };
  EXPECT_EQ(text("num_stages is 3, or set num_stages to 4"), "--stages is 3, or set --stages to 4");
  EXPECT_EQ(text("lower num_stages"), "lower --stages");
  EXPECT_EQ(text("balance has 2 entries, num_micro_batches is 0"), "--balance has 2 entries, --micro-batches is 0");
  EXPECT_EQ(text("the balance of num_stages_max"), "the balance of num_stages_max");
  EXPECT_EQ(text("\"num_stages\" is missing"), "\"num_stages\" is missing");
  EXPECT_EQ(text("threads_per_stage is 0"), "threads_per_stage is 0");
}

TEST(Command, GetDataIsACommand) {
  const Outcome help = run_gpipe({"get-data", "--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  EXPECT_THAT(help.out, StartsWith("Usage: gpipe get-data "));
  const Outcome unknown = run_gpipe({"get-data", "no-such-set"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no data set 'no-such-set'"));
}

TEST(Command, MakesControlCharactersInMessagesVisible) {
  const Outcome outcome = run_gpipe({"check", "\x1b[31mfile"});
  expect_bad_usage(outcome, "\\x1b[31mfile", "name a file");
  EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b")));
}

TEST(Command, FailsWhenStandardOutputIsFull) {
  for (const Arguments& arguments : {Arguments{"schedule", "1f1b", "--stages", "4", "--micro-batches", "8"},
                                     Arguments{"schedule", "gpipe", "--stages", "4", "--micro-batches", "9000"},
                                     Arguments{"--help"}, Arguments{"--version"}}) {
    const Outcome outcome = run_gpipe_into("/dev/full", arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments.front();
    EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output: No space left on device"));
  }
}

TEST(Command, FailsWhenStandardOutputMayNotGrow) {
  const TemporaryFolder folder;
  const std::string out = folder.write("out", "");
  const FileSizeLimit limit(1000);
  const Outcome outcome = run_gpipe_into(out, {"schedule", "gpipe", "--stages", "4", "--micro-batches", "9000"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output: File too large"));
}

TEST(Command, SaysNothingWhenItsReaderGoesAway) {
  const TemporaryFolder folder;
  const std::string line = "gpipe_command schedule gpipe --stages 4 --micro-batches 20000 2> " + folder.path("err") +
                           " | head -c 10 > " + folder.path("out");
  const std::string script = "gpipe_command() { \"" GPIPE_COMMAND "\" \"$@\"; }\n";
  EXPECT_EQ(std::system((script + line).c_str()), 0);
  EXPECT_EQ(read_file(folder.path("out")), "F0 F1 F2 F");
  EXPECT_EQ(read_file(folder.path("err")), "");
  // The same where a parent has SIGPIPE ignored, so that the write fails instead.
  EXPECT_EQ(std::system((script + "trap '' PIPE\n" + line).c_str()), 0);
  EXPECT_EQ(read_file(folder.path("err")), "");
}

// The sanitizers' own start takes a good part of a second.
#ifdef __SANITIZE_ADDRESS__
constexpr std::chrono::milliseconds kMostToStart{3000};
#else
constexpr std::chrono::milliseconds kMostToStart{100};
#endif

TEST(Command, StartsWithinATenthOfASecond) {
  run_gpipe({"--version"});  // from the disk
  auto least = std::chrono::steady_clock::duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(run_gpipe({"schedule", "1f1b", "--stages", "4", "--micro-batches", "8"}).exit_code, 0);
    least = std::min(least, std::chrono::steady_clock::now() - start);
  }
  EXPECT_LT(least, kMostToStart);
}

}  // namespace
}  // namespace gpipe::cli
