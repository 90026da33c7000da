// gpipe verify on programs: the examples are verified, and each fault of a program is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"
#include "tests/train/help_files.h"
#include "tests/train/image_files.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Arguments verify_with(const Arguments& options, const Arguments& program) {
  Arguments arguments = {"verify"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), program.begin(), program.end());
  return arguments;
}

const Arguments kFewRuns = {"--stages", "2",           "--schedules", "1f1b",    "--recompute",
                            "always",   "--processes", "none",        "--steps", "2"};

class Example : public ::testing::TestWithParam<const char*> {};

TEST_P(Example, IsVerifiedOnThreadsAndOverProcesses) {
  const Outcome outcome = run_gpipe(
      verify_with({"--stages", "3", "--schedules", "1f1b", "--recompute", "always", "--processes", "2", "--steps", "2"},
                  {std::string(GPIPE_EXAMPLES) + "/" + GetParam()}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nverified\n"));
  EXPECT_THAT(outcome.out, HasSubstr("2 processes"));
  EXPECT_THAT(outcome.err, HasSubstr("5 of 5: 2 stages, 1f1b, recompute always, 2 processes"));
}

INSTANTIATE_TEST_SUITE_P(All, Example,
                         ::testing::Values("01_quickstart", "02_autograd", "03_skips_and_ties", "04_own_schedule",
                                           "05_processes", "06_resume"),
                         [](const auto& example) { return std::string(example.param); });

// `gpipe train` with what is the same for all of its tasks.
void expect_verified_training(const TemporaryFolder& folder, const Arguments& task) {
  Arguments program = {GPIPE_COMMAND, "train"};
  program.insert(program.end(), task.begin(), task.end());
  program.insert(program.end(), {"--steps", "2", "--stages", "2", "--micro-batches", "2"});
  const Outcome outcome = run_gpipe(verify_with(kFewRuns, program), "", {"GPIPE_DATA_DIR=" + folder.path("data")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nverified\n"));
}

TEST(VerifyCommand, TrainingOnImagesIsVerified) {
  const TemporaryFolder folder;
  write_images(folder, "train", 40);
  write_images(folder, "t10k", 20);
  expect_verified_training(folder,
                           {"image", "--data-dir", folder.path(""), "--model", "resnet-cifar:8", "--batch-size", "8"});
}

TEST(VerifyCommand, TrainingALanguageModelIsVerified) {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 100; ++line) text += "the cat sat on the mat and the dog ran off\n";
  expect_verified_training(
      folder, {"lm", "--text", folder.write("text.txt", text), "--model", "transformer-lm:2,32,64,2", "--vocabulary",
               "275", "--sequence-length", "16", "--batch-size", "8"});
}

TEST(VerifyCommand, TrainingATranslatorIsVerified) {
  const TemporaryFolder folder;
  write_help(folder);
  expect_verified_training(folder, {"translate", "--data-dir", folder.path(""), "--languages", "de", "--model",
                                    "t:1,64,2,32", "--vocabulary", "305", "--max-tokens", "256"});
}

class Fault : public ::testing::TestWithParam<const char*> {};

TEST_P(Fault, IsNamedWithItsLayer) {
  Arguments options = kFewRuns;
  options.emplace_back("--json");
  if (std::string(GetParam()) == "batch-statistics") options.insert(options.end(), {"--replicas", "2"});
  const Outcome outcome = run_gpipe(verify_with(options, {GPIPE_FAULTY_PROGRAM, GetParam()}));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(report["verified"]);
  ASSERT_THAT(report["findings"], SizeIs(1)) << outcome.out;
  EXPECT_EQ(report["findings"][0]["cause"], GetParam()) << outcome.out;
  const bool is_of_layer = std::string(GetParam()) != "loss-is-no-mean" && std::string(GetParam()) != "unseeded-data";
  if (is_of_layer) {
    EXPECT_THAT(report["findings"][0]["layer"].get<std::string>(), HasSubstr("(suspect, ")) << outcome.out;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fault,
                         ::testing::Values("own-generator", "hidden-state", "unregistered-weight", "race",
                                           "loss-is-no-mean", "batch-statistics", "unseeded-data"),
                         [](const auto& fault) {
                           std::string name = fault.param;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

TEST(VerifyCommand, AProgramWithReplicasIsVerified) {
  const Outcome outcome = run_gpipe(verify_with(
      {"--stages", "1", "--schedules", "1f1b", "--recompute", "never", "--processes", "none", "--replicas", "2"},
      {GPIPE_FAULTY_PROGRAM, "none"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 replicas of 2 stages"), HasSubstr("up to rounding")));
}

TEST(VerifyCommand, AProgramThatStartsItsOwnRanksIsVerifiedWithItsStages) {
  const Outcome outcome =
      run_gpipe(verify_with({"--schedules", "gpipe", "--recompute", "always"},
                            {GPIPE_COMMAND, "launch", "-n", "2", "--", GPIPE_FAULTY_PROGRAM, "none"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("compared with as it is (2 stages, 1f1b, recompute never)"),
                                 HasSubstr("2 stages, gpipe, recompute always"), Not(HasSubstr("processes"))));
}

TEST(VerifyCommand, AProgramThatTakesLongIsStoppedOnceItHasTakenTheSteps) {
  Arguments options = kFewRuns;
  options.emplace_back("--stop");
  const Outcome outcome = run_gpipe(verify_with(options, {GPIPE_FAULTY_PROGRAM, "endless"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST(VerifyCommand, SaysWhyAProgramFailed) {
  const Outcome outcome = run_gpipe(verify_with(kFewRuns, {GPIPE_FAULTY_PROGRAM, "fails"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("the program ended with exit code 7"), HasSubstr("this program always fails")));
  EXPECT_EQ(run_gpipe(verify_with({}, {"/nowhere/program"})).exit_code, 127);
  const Outcome no_training = run_gpipe(verify_with({}, {"/bin/true"}));
  EXPECT_EQ(no_training.exit_code, 3);
  EXPECT_THAT(no_training.err, HasSubstr("no training step of a gpipe::Pipeline was recorded"));
}

TEST(VerifyCommand, RefusesBadUsage) {
  EXPECT_EQ(run_gpipe({"verify"}).exit_code, 2);
  EXPECT_THAT(run_gpipe({"verify", "./program"}).err, HasSubstr("put '--' before the program"));
  EXPECT_THAT(run_gpipe(verify_with({"--schedules", "1f2b"}, {"x"})).err, HasSubstr("1f1b"));
  EXPECT_THAT(run_gpipe(verify_with({"--recompute", "auto"}, {"x"})).err, HasSubstr("name the modes"));
  EXPECT_THAT(run_gpipe(verify_with({"--replicas", "1"}, {"x"})).err, HasSubstr("give 2 or more"));
  for (const char* option : {"--stages", "--processes", "--replicas", "--steps"}) {
    for (const char* value : {"", "0", "-1", "x", "2147483648", "1e3", "2,", "nan"}) {
      const Outcome outcome = run_gpipe(verify_with({option, value}, {"/bin/true"}));
      EXPECT_EQ(outcome.exit_code, 2) << option << " " << value;
      EXPECT_THAT(outcome.err, HasSubstr(option)) << value;
    }
  }
  EXPECT_THAT(run_gpipe({"verify", "--help"}).out, HasSubstr("0 verified"));
}

}  // namespace
}  // namespace gpipe::cli
