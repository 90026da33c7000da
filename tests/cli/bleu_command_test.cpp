#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"

namespace gpipe::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kHypothesis = "The dog bit the man.\nIt wasn't surprising.\nThe man had just bitten him.\n";
constexpr const char* kFirst = "The dog bit the man.\nIt was not unexpected.\nThe man bit him first.\n";
constexpr const char* kSecond = "The dog had bit the man.\nNo one was surprised.\nThe man had bitten the dog.\n";

class BleuCommand : public ::testing::Test {
 protected:
  Outcome run(const Arguments& more, const std::string& input = "") const {
    Arguments arguments = {"bleu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments, input);
  }
  double score(const std::string& hypothesis, const std::string& reference) const {
    const std::string path = folder_.write("reference of score", reference);
    return json::parse(run({"--json", "--reference", path, "-"}, hypothesis).out)["score"];
  }
  void expect_refusal(const Outcome& outcome, const std::string& message) const {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("gpipe: "));
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }

  const TemporaryFolder folder_;
  const std::string hypothesis_ = folder_.write("hypothesis", kHypothesis);
  const std::string first_ = folder_.write("first", kFirst);
  const std::string second_ = folder_.write("second", kSecond);
};

TEST_F(BleuCommand, PrintsTheScoreWithItsSignature) {
  const Outcome outcome = run({"--reference", first_, "--reference", second_, hypothesis_});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith("BLEU|nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:gpipe-0."));
  EXPECT_THAT(outcome.out,
              HasSubstr(" = 48.53 82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)\n"));
}

TEST_F(BleuCommand, PrintsEveryNumberAsJson) {
  const json score = json::parse(run({"--json", "--reference", first_, "--reference=" + second_, hypothesis_}).out);
  EXPECT_NEAR(score["score"].get<double>(), 48.530827, 1e-6);
  EXPECT_EQ(score["name"], "BLEU");
  EXPECT_EQ(score["nrefs"], "2");
  EXPECT_EQ(score["tok"], "13a");
  EXPECT_EQ(score["counts"], json({14, 7, 5, 3}));
  EXPECT_EQ(score["totals"], json({17, 14, 11, 8}));
  EXPECT_EQ(score["sys_len"], 17);
  EXPECT_EQ(score["ref_len"], 18);
  EXPECT_NEAR(score["bp"].get<double>(), 0.942873, 1e-6);
  EXPECT_THAT(score["signature"].get<std::string>(), StartsWith("nrefs:2|"));
}

TEST_F(BleuCommand, TakesTheTokenizerByName) {
  const Arguments files = {"--reference", first_, "--reference", second_, hypothesis_};
  const auto with = [&](const char* tokenizer) {
    Arguments all = {"--tokenize", tokenizer};
    all.insert(all.end(), files.begin(), files.end());
    return run(all);
  };
  EXPECT_THAT(with("none").out, HasSubstr("tok:none|"));
  EXPECT_THAT(with("none").out, HasSubstr(" = 49.19 "));
  EXPECT_THAT(with("char").out, HasSubstr("tok:char|"));
  expect_refusal(with("chars"), "--tokenize: 'chars' is not one of 13a, none, char; did you mean 'char'?");
}

TEST_F(BleuCommand, ReadsStandardInputOnce) {
  EXPECT_EQ(run({"--reference", first_, "-"}, kHypothesis).out, run({"--reference", first_, hypothesis_}).out);
  EXPECT_EQ(run({"--reference", "-", hypothesis_}, kFirst).out, run({"--reference", first_, hypothesis_}).out);
  expect_refusal(run({"--reference", "-", "-"}, kFirst), "standard input can be read only once");
}

TEST_F(BleuCommand, NamesBothCountsOfLinesThatDiffer) {
  const std::string longer = folder_.write("longer", std::string(kFirst) + "\n");
  expect_refusal(run({"--reference", first_, "--reference", longer, hypothesis_}),
                 "'" + hypothesis_ + "' has 3 lines, but reference '" + longer + "' has 4 lines");
  expect_refusal(run({"--reference", first_, "-"}, "one"),
                 "standard input has 1 line, but reference '" + first_ + "' has 3 lines");
}

// As sacreBLEU reads a file: "\n" alone ends a line, the last one may lack it, and whitespace at the end counts for
// nothing.
TEST_F(BleuCommand, ReadsLinesHoweverTheyEnd) {
  EXPECT_NEAR(score("a b c d\r\ne f g h", "a b c d\ne f g h\n"), 100, 1e-9);
  EXPECT_NEAR(score("a b\rc d\u2028e\n\n", "a b c d e\n\n"), 100, 1e-9);
  EXPECT_NEAR(score("a b c d \t\u00a0\n", "a b c d"), 100, 1e-9);
}

TEST_F(BleuCommand, ScoresEmptyLines) {
  EXPECT_EQ(score("\n\n", "a b c d\n\n"), 0);
  EXPECT_GT(score("a b c d e\n\n", "a b c d e\nf\n"), 50);
  EXPECT_GT(score("a b c d e\nf\n", "a b c d e\n\n"), 50);
}

TEST_F(BleuCommand, RefusesWhatItCannotScore) {
  expect_refusal(run({"--reference", first_}), "No HYPOTHESIS is given");
  expect_refusal(run({hypothesis_}), "--reference is missing");
  expect_refusal(run({"--reference", "", hypothesis_}), "--reference: '' is not the name of a file");
  expect_refusal(run({"--reference", first_, ""}), "'' is not the name of a file");
  expect_refusal(run({"--reference", first_, "-"}, ""), "standard input is empty");
  expect_refusal(run({"--reference", folder_.path("absent"), hypothesis_}), "cannot read '" + folder_.path("absent"));
  expect_refusal(run({"--reference", first_, second_, hypothesis_}), "unexpected argument '" + hypothesis_);
  expect_refusal(run({"--refrence", first_, hypothesis_}), "unknown option '--refrence'");
}

TEST_F(BleuCommand, SaysWhatToDoWithGzip) {
  const std::string packed = folder_.write("packed.gz", std::string("\x1f\x8b\x08\x00", 4));
  for (const Arguments& files : {Arguments{"--reference", first_, packed}, {"--reference", packed, hypothesis_}}) {
    const Outcome outcome = run(files);
    expect_refusal(outcome, "'" + packed + "' is gzip");
    EXPECT_THAT(outcome.err, HasSubstr("zcat FILE | gpipe bleu"));
  }
}

TEST_F(BleuCommand, NamesTheLineThatIsNotUtf8) {
  expect_refusal(run({"--reference", first_, "-"},
                     "good\nb\xe4"
                     "d\ngood\n"),
                 "standard input: line 2 is not UTF-8");
}

}  // namespace
}  // namespace gpipe::cli
