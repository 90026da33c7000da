#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kGood = "F0 F1 B0 B1\nF0 B0 F1 B1\n";
// Worker 1 begins with 2F0, which needs what 1F0 after it makes.
constexpr const char* kDeadlock = "0F0 3F0 0B0 3B0\n2F0 1F0 2B0 1B0\n";
constexpr const char* kIncomplete = "F0 F1 B0 B1\nF0 F1 B0\n";

TEST(CheckCommand, PrintsTheCertificateOfAFile) {
  const TemporaryFolder folder;
  const Outcome outcome = run_gpipe({"check", folder.write("schedule.txt", kGood)});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* part :
       {"proven", "2 workers, 2 stages, 2 micro-batches", "8 (4 F, 4 B)", "canonical: ascending", "activation 0 -> 1",
        "gradient 1 -> 0", "live", "free", "rendezvous sends", "one channel a pair", "one engine a worker survives"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST(CheckCommand, TellsCsvFromTextByContent) {
  EXPECT_EQ(run_gpipe({"check", "-"}, "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n").out, run_gpipe({"check", "-"}, kGood).out);
}

TEST(CheckCommand, CollapsesFlowsThatDifferOnlyInTheirStage) {
  const std::string schedule = run_gpipe({"schedule", "forward", "--stages", "8", "--micro-batches", "4"}).out;
  EXPECT_THAT(run_gpipe({"check", "-"}, schedule).out, HasSubstr("activation s -> s+1 for s = 0.."));
}

TEST(CheckCommand, CollapsesFreeCapacitiesThatFallByOneAStage) {
  const std::string schedule = run_gpipe({"schedule", "1f1b", "--stages", "32", "--micro-batches", "64"}).out;
  const std::string certificate = run_gpipe({"check", "-"}, schedule).out;
  EXPECT_THAT(certificate, HasSubstr("activation s -> s+1 for s = 0..30     1  32..2"));
  EXPECT_THAT(certificate, HasSubstr("32, 31, 30, ..., 3, 2, 1"));
}

TEST(CheckCommand, LeavesOutRowsOfAHugeTable) {
  const std::string schedule = run_gpipe({"schedule", "zb-v", "--stages", "128", "--micro-batches", "128"}).out;
  const Outcome outcome = run_gpipe({"check", "-"}, schedule);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_LT(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 70);
  EXPECT_THAT(outcome.out, HasSubstr("more rows; --json has them all"));
}

TEST(CheckCommand, RefusesADeadlockWithItsCycle) {
  const Outcome outcome = run_gpipe({"check", "-"}, kDeadlock);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("deadlock"));
  EXPECT_THAT(outcome.out, HasSubstr("1F0 comes after 2F0"));
  EXPECT_THAT(outcome.err, StartsWith("gpipe: standard input is refused: "));
  EXPECT_THAT(outcome.err, HasSubstr("deadlock"));
}

TEST(CheckCommand, RefusesAnIncompleteScheduleNamingTheAction) {
  const Outcome outcome = run_gpipe({"check", "-"}, kIncomplete);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("1B1 is missing on worker 1"));
}

TEST(CheckCommand, PrintsTheCertificateAsJson) {
  const json certificate = json::parse(run_gpipe({"check", "-", "--json"}, kGood).out);
  EXPECT_EQ(certificate["valid"], true);
  EXPECT_EQ(certificate["num_workers"], 2);
  EXPECT_EQ(certificate["num_micro_batches"], 2);
  EXPECT_EQ(certificate["num_actions"], 8);
  EXPECT_EQ(certificate["canonical"], true);
  EXPECT_EQ(certificate["peak_activations"], json({2.0, 1.0}));
  EXPECT_EQ(certificate["peak_bytes"], nullptr);
  ASSERT_EQ(certificate["flows"].size(), 2u);
  EXPECT_EQ(certificate["flows"][0]["flow"], "activation 0 -> 1");
  EXPECT_GE(certificate["flows"][0]["free_capacity"], certificate["flows"][0]["live_capacity"]);
  EXPECT_TRUE(certificate["rendezvous"].contains("survives"));
  EXPECT_TRUE(certificate["one_channel_per_pair"].contains("survives"));
  EXPECT_EQ(certificate["one_engine"], json({{"survives", true}, {"counter_example", json::array()}}));
}

TEST(CheckCommand, PrintsTheRefusalAsJson) {
  const Outcome outcome = run_gpipe({"check", "-", "--json"}, kDeadlock);
  EXPECT_EQ(outcome.exit_code, 1);
  const json refusal = json::parse(outcome.out);
  EXPECT_EQ(refusal["valid"], false);
  EXPECT_THAT(refusal["rule"].get<std::string>(), HasSubstr("deadlock"));
  EXPECT_GE(refusal["cycle"].size(), 2u);
}

TEST(CheckCommand, SaysWhyAScheduleIsNotCanonicalAndFailsIfAskedTo) {
  const std::string schedule =
      run_gpipe({"schedule", "gpipe", "--stages", "2", "--micro-batches", "3", "--descending"}).out;
  const Outcome told = run_gpipe({"check", "-"}, schedule);
  EXPECT_EQ(told.exit_code, 0);
  EXPECT_THAT(told.out, HasSubstr("not canonical: "));
  const Outcome asked = run_gpipe({"check", "-", "--canonical"}, schedule);
  EXPECT_EQ(asked.exit_code, 1);
  EXPECT_THAT(asked.err, HasSubstr("is not canonical: "));
}

TEST(CheckCommand, FollowsSkipsAndTies) {
  const std::string schedule = run_gpipe({"schedule", "1f1b", "--stages", "4", "--micro-batches", "4"}).out;
  const Outcome outcome = run_gpipe({"check", "--skip", "0:3", "--skip", "1:2", "--tie", "0:3", "-"}, schedule);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("skip 0 -> 3"));
  EXPECT_THAT(outcome.out, HasSubstr("skip 1 -> 2"));
  EXPECT_THAT(outcome.out, HasSubstr("tie 3 -> 0"));
  for (const char* word : {"3", "a:b", "0:9", "3:0"}) {
    const Outcome refused = run_gpipe({"check", "-", "--skip", word}, schedule);
    EXPECT_EQ(refused.exit_code, 2) << word;
    EXPECT_THAT(refused.err, StartsWith("gpipe: ")) << word;
  }
}

TEST(CheckCommand, RefusesAWorkerThatHoldsTooMuch) {
  const Arguments bytes = {"check", "-", "--activation-bytes", "1GiB", "--static-bytes", "512MiB", "--memory-limit"};
  const auto with = [&bytes](const char* limit) {
    Arguments all = bytes;
    all.emplace_back(limit);
    return run_gpipe(all, kGood);
  };
  EXPECT_EQ(with("2.5GiB").exit_code, 0);
  EXPECT_THAT(with("2.5GiB").out, HasSubstr("2.5 GiB, 1.5 GiB"));
  EXPECT_EQ(with("2.4GiB").exit_code, 1);
  EXPECT_THAT(with("2.4GiB").out, HasSubstr("worker 0"));
  EXPECT_EQ(with("2.4 parsecs").exit_code, 2);
}

TEST(CheckCommand, AMemoryLimitNeedsToKnowWhatAStageHolds) {
  const Outcome outcome = run_gpipe({"check", "-", "--memory-limit", "2GiB"}, kGood);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--activation-bytes"));
}

TEST(CheckCommand, NamesThePlaceOfAParseError) {
  const Outcome outcome = run_gpipe({"check", "-"}, "F0 F1\nF0 X1\n");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("standard input: line 2, column 4"));
  EXPECT_EQ(outcome.out, "");
}

TEST(CheckCommand, RefusesWhatIsNoSchedule) {
  std::string garbage;
  for (int byte = 0; byte < 4096; ++byte) garbage += static_cast<char>(byte * 2654435761u >> 13);
  for (const std::string& input : {std::string(), std::string("# nothing\n"), garbage, std::string(4096, '\0'),
                                   std::string("\x7f"
                                               "ELF\x02\x01"),
                                   std::string("99999999999999999999F0\n"), std::string("{\"layers\": []}")}) {
    const Outcome outcome = run_gpipe({"check", "-"}, input);
    EXPECT_EQ(outcome.exit_code, 2) << input;
    EXPECT_THAT(outcome.err, StartsWith("gpipe: standard input: "));
    EXPECT_THAT(outcome.err, Not(HasSubstr(std::string(1, '\0'))));
    EXPECT_LT(outcome.err.size(), 400u);
  }
}

TEST(CheckCommand, RefusesAnEndlessFile) {
  const Outcome outcome = run_gpipe({"check", "/dev/zero"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'/dev/zero' holds more than 1 GiB"));
}

TEST(CheckCommand, NamesTheFileItCannotRead) {
  EXPECT_THAT(run_gpipe({"check", "/no/such/file"}).err, HasSubstr("cannot read '/no/such/file': No such file"));
  EXPECT_THAT(run_gpipe({"check", "/"}).err, HasSubstr("cannot read '/': Is a directory"));
  EXPECT_THAT(run_gpipe({"check"}).err, HasSubstr("No FILE is given"));
  EXPECT_EQ(run_gpipe({"check", "/no/such/file"}).exit_code, 2);
}

}  // namespace
}  // namespace gpipe::cli
