// Hostile numbers for every option of the commands without libtorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "hostile_values.h"

namespace gpipe::cli {
namespace {

int run_command(const Arguments& arguments) {
  std::vector<std::string> words = {GPIPE_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(GPIPE_COMMAND, pointers.data());
  return 99;
}

constexpr const char* kProfile = R"({"samples_per_micro_batch": 2, "layers": [
  {"name": "a", "forward_seconds": 1, "backward_seconds": 2,
   "parameter_bytes": 100, "activation_bytes": 10, "output_bytes": 4},
  {"name": "b", "forward_seconds": 2, "backward_seconds": 2,
   "parameter_bytes": 100, "activation_bytes": 10, "output_bytes": 4},
  {"name": "c", "forward_seconds": 1, "backward_seconds": 4,
   "parameter_bytes": 100, "activation_bytes": 10, "output_bytes": 4},
  {"name": "d", "forward_seconds": 1, "backward_seconds": 1,
   "parameter_bytes": 100, "activation_bytes": 10, "output_bytes": 4}]})";

class HostileValue : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::string profile_ = folder_.write("profile.json", kProfile);
  const std::string schedule_ = folder_.write("schedule.txt", "F0 F1 B0 B1\nF0 B0 F1 B1\n");
  const std::string text_ = folder_.write("text.txt", "a b c d e\n");
};

TEST_F(HostileValue, OfASchedule) {
  for (const char* name : {"1f1b", "gpipe", "zb-v", "interleaved"}) {
    expect_clear_refusals(run_command, {{"schedule", name}, {{"--stages", "2"}, {"--micro-batches", "4"}}});
  }
  for (const char* format : {"csv", "gantt", "svg"}) {
    expect_clear_refusals(run_command,
                          {{"schedule", "1f1b"}, {{"--stages", "2"}, {"--micro-batches", "4"}, {"--format", format}}});
  }
}

TEST_F(HostileValue, OfACheck) {
  expect_clear_refusals(run_command, {{"check"}, {{schedule_}}});
  expect_clear_refusals(run_command,
                        {{"check"}, {{schedule_}, {"--activation-bytes", "9"}, {"--memory-limit", "1GB"}}});
}

TEST_F(HostileValue, OfASimulation) {
  for (const char* name : {"1f1b", "zb-h1"}) {
    expect_clear_refusals(run_command, {{"simulate", name}, {{"--stages", "2"}, {"--micro-batches", "4"}}});
  }
  expect_clear_refusals(run_command,
                        {{"simulate", "1f1b"}, {{"--stages", "2"}, {"--micro-batches", "4"}, {"--profile", profile_}}});
  expect_clear_refusals(run_command,
                        {{"simulate", "1f1b"}, {{"--stages", "2"}, {"--micro-batches", "4"}, {"--capacity", "free"}}});
}

TEST_F(HostileValue, OfAPlan) {
  expect_clear_refusals(run_command,
                        {{"plan"}, {{"--profile", profile_}, {"--stages", "2"}, {"--micro-batches", "4"}}});
  for (const char* schedule : {"auto", "looped-bfs"}) {
    expect_clear_refusals(run_command, {{"plan"},
                                        {{"--profile", profile_},
                                         {"--stages", "2"},
                                         {"--micro-batches", "auto"},
                                         {"--mini-batch", "8"},
                                         {"--schedule", schedule},
                                         {"--recompute", "auto"},
                                         {"--memory-limit", "2000"}}});
  }
}

TEST_F(HostileValue, OfAScore) { expect_clear_refusals(run_command, {{"bleu"}, {{"--reference", text_}, {text_}}}); }

TEST_F(HostileValue, OfALaunch) { expect_clear_refusals(run_command, {{"launch"}, {{"-n", "2"}}, "", {"true"}}); }

TEST_F(HostileValue, OfEveryCommandThatThereIs) {
  const std::vector<Arguments> known = {
      {"schedule"},  {"check"},          {"simulate"},    {"plan"},
      {"bleu"},      {"launch"},         {"doctor"},      {"get-data"},  // has no numbers
      {"verify"},  // of VerifyCommand: it needs a program that trains
      {"train"},     {"train", "image"}, {"train", "lm"}, {"train", "translate"},
      {"eval"},      {"eval", "image"},  {"eval", "lm"},  {"eval", "translate"},
      {"translate"}, {"generate"},       {"profile"},     {"capacity"},
      {"inspect"},   {"convert"},        {"bench"}};
  for (const Arguments& command : commands_of()) {
    EXPECT_THAT(known, ::testing::Contains(command)) << "give its options hostile values here, or with the commands of "
                                                        "libtorch";
  }
}

}  // namespace
}  // namespace gpipe::cli
