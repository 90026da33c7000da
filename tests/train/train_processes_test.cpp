// gpipe train under gpipe launch: the same weights, files and progress from the first rank only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "run_command.h"
#include "tests/train/image_files.h"

namespace gpipe::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainProcesses : public ::testing::Test {
 protected:
  TrainProcesses() {
    write_images(folder_, "train", 64);
    write_images(folder_, "t10k", 20);
  }

  // `name` is that of the files it writes.
  Arguments arguments(const std::string& name, const Arguments& more) const {
    Arguments arguments = {"train",           "image",        "--data-dir", folder_.path(""),  "--model",
                           "resnet-cifar:20", "--batch-size", "16",         "--micro-batches", "4"};
    if (std::find(more.begin(), more.end(), "--steps") == more.end()) {
      arguments.insert(arguments.end(), {"--steps", "4"});
    }
    if (std::find(more.begin(), more.end(), "--stages") == more.end())
      arguments.insert(arguments.end(), {"--stages", "2"});
    for (const char* kind : {"save", "trace", "metrics"}) {
      arguments.push_back(std::string("--") + kind);
      arguments.push_back(folder_.path(name + "." + kind));
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  Outcome launch(const std::string& name, const Arguments& more, const Arguments& how = {"-n", "2"}) const {
    Arguments command = {"launch"};
    command.insert(command.end(), how.begin(), how.end());
    command.insert(command.end(), {"--", GPIPE_COMMAND});
    const Arguments train = arguments(name, more);
    command.insert(command.end(), train.begin(), train.end());
    return run_gpipe(command);
  }

  const TemporaryFolder folder_;
};

TEST_F(TrainProcesses, WriteTheWeightsThatThreadsDo) {
  const Outcome threads = run_gpipe(arguments("threads", {}));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = launch("processes", {});
  ASSERT_EQ(processes.exit_code, 0) << processes.out << processes.err;
  EXPECT_EQ(read_file(folder_.path("processes.save")), read_file(folder_.path("threads.save")));
  EXPECT_THAT(processes.out, HasSubstr("[0] resnet-cifar:20"));
  EXPECT_THAT(processes.out, HasSubstr("[0] "));
  EXPECT_THAT(processes.out, Not(HasSubstr("[1] ")));
  EXPECT_THAT(read_file(folder_.path("processes.trace")), HasSubstr("traceEvents"));
  const std::string metrics = read_file(folder_.path("processes.metrics"));
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 5);  // four steps and an evaluation
}

TEST_F(TrainProcesses, GoOnFromWeightsOfAllStages) {
  ASSERT_EQ(run_gpipe(arguments("first", {})).exit_code, 0);
  const Arguments more = {"--weights", folder_.path("first.save"), "--balance", "30,47"};
  const Outcome threads = run_gpipe(arguments("threads", more));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const Outcome processes = launch("processes", more);
  ASSERT_EQ(processes.exit_code, 0) << processes.out << processes.err;
  EXPECT_EQ(read_file(folder_.path("processes.save")), read_file(folder_.path("threads.save")));
}

TEST_F(TrainProcesses, ReplicasHaveTheSameBitsForEveryNumberOfStages) {
  const Outcome one = launch("one", {"--stages", "1"}, {"-n", "2", "--replicas", "2"});
  ASSERT_EQ(one.exit_code, 0) << one.out << one.err;
  const Outcome two = launch("two", {"--stages", "2"}, {"-n", "4", "--replicas", "2"});
  ASSERT_EQ(two.exit_code, 0) << two.out << two.err;
  EXPECT_EQ(read_file(folder_.path("two.save")), read_file(folder_.path("one.save")));
}

TEST_F(TrainProcesses, ReplicasResume) {
  const Arguments replicas = {"-n", "2", "--replicas", "2"};
  const Arguments more = {"--stages", "1", "--checkpoint-dir", folder_.path("checkpoints"), "--resume"};
  const Outcome first = launch("first", more, replicas);
  ASSERT_EQ(first.exit_code, 0) << first.out << first.err;
  EXPECT_THAT(first.out, HasSubstr("from the beginning"));
  Arguments longer = more;
  longer.insert(longer.end(), {"--steps", "6", "--force"});
  const Outcome second = launch("second", longer, replicas);
  ASSERT_EQ(second.exit_code, 0) << second.out << second.err;
  EXPECT_THAT(second.out, HasSubstr("after step 4"));
}

// Rank 1 is given `more` besides.
Arguments on_rank_1(const Arguments& command, const Arguments& more) {
  std::string words;
  for (const std::string& word : more) words += " '" + word + "'";
  Arguments launch = {"launch",
                      "-n",
                      "2",
                      "--",
                      "sh",
                      "-c",
                      "[ \"$GPIPE_RANK\" = 0 ] || set -- \"$@\"" + words + "; exec \"$@\"",
                      "sh",
                      GPIPE_COMMAND};
  launch.insert(launch.end(), command.begin(), command.end());
  return launch;
}

// Both ranks end before anything was trained; one of them says so, in the words of the command line, and the launcher
// repeats its last lines.
void expect_difference(const Arguments& launch, const std::string& first, const std::string& other) {
  const Outcome outcome = run_gpipe(launch);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("'" + first + "' on rank 0, but '" + other + "' on rank 1"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("same call")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("[1] gpipe:"))) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("step")));
}

TEST_F(TrainProcesses, ThatDifferInAnOptionEndAtOnceAndNameIt) {
  const std::vector<std::vector<std::string>> options = {{"--lr", "0.003", "0.1"},
                                                         {"--clip", "1", "2.5"},
                                                         {"--weight-decay", "0.01", "0"},
                                                         {"--optimizer", "adamw", "sgd"},
                                                         {"--precision", "float32", "bf16"},
                                                         {"--label-smoothing", "0", "0.1"},
                                                         {"--steps", "0", "3"}};
  const Arguments command = {"train",           "image",    "--data-dir", folder_.path(""),  "--model",
                             "resnet-cifar:20", "--stages", "2",          "--micro-batches", "4",
                             "--batch-size",    "16"};
  for (const auto& option : options) {
    expect_difference(on_rank_1(command, {option[0], option[2]}), option[0] + " " + option[1],
                      option[0] + " " + option[2]);
  }
  expect_difference(on_rank_1(command, {"--save", folder_.path("one.save")}), "no --save", "--save");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("one.save")));
}

TEST_F(TrainProcesses, MayReadTheSameDataFromOtherPlaces) {
  const TemporaryFolder elsewhere;
  write_images(elsewhere, "train", 64);
  write_images(elsewhere, "t10k", 20);
  const Arguments command = {"train",           "image", "--model",      "resnet-cifar:20",
                             "--micro-batches", "4",     "--batch-size", "16",
                             "--stages",        "2",     "--steps",      "1"};
  const std::string rest = "[ \"$GPIPE_RANK\" = 0 ] && set -- \"$@\" --data-dir '" + folder_.path("") +
                           "' --lr 0.1 || set -- \"$@\" --data-dir '" + elsewhere.path("") + "' --lr 1e-1; exec \"$@\"";
  Arguments launch = {"launch", "-n", "2", "--", "sh", "-c", rest, "sh", GPIPE_COMMAND};
  launch.insert(launch.end(), command.begin(), command.end());
  const Outcome same = run_gpipe(launch);
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
  write_images(elsewhere, "train", 48);
  const Outcome other = run_gpipe(launch);
  EXPECT_EQ(other.exit_code, 1) << other.out << other.err;
  EXPECT_THAT(other.err, HasSubstr("'--data, --data-dir: 4 batches an epoch of data with the hash "));
  EXPECT_THAT(other.err, HasSubstr("but '--data, --data-dir: 3 batches an epoch of data with the hash "));
}

TEST_F(TrainProcesses, ThatDifferInTextDropoutOrWeightsEndAtOnce) {
  std::string text;
  for (int line = 0; line < 300; ++line) text += "the cat sat on the mat and the dog ran off\n";
  const std::string file = folder_.write("text.txt", text);
  const Arguments model = {"--model",           "transformer-lm:1,16,16,2",
                           "--sequence-length", "8",
                           "--vocabulary",      "275",
                           "--batch-size",      "8",
                           "--stages",          "2",
                           "--micro-batches",   "2"};
  Arguments command = {"train", "lm", "--steps", "1"};
  command.insert(command.end(), model.begin(), model.end());
  Arguments with_text = command;
  with_text.insert(with_text.end(), {"--text", file});
  expect_difference(on_rank_1(with_text, {"--dropout", "0.5"}), "--dropout 0.1", "--dropout 0.5");

  Arguments alone = with_text;
  alone.insert(alone.end(), {"--save", folder_.path("weights")});
  ASSERT_EQ(run_gpipe(alone).exit_code, 0);
  const Outcome weights = run_gpipe(on_rank_1(with_text, {"--weights", folder_.path("weights")}));
  EXPECT_EQ(weights.exit_code, 1) << weights.out << weights.err;
  EXPECT_THAT(weights.err, HasSubstr("'no --weights' on rank 0, but '--weights: "));

  const std::string other = folder_.write("other.txt", text + "and so did the other dog of that neighbour\n");
  const std::string choose = "[ \"$GPIPE_RANK\" = 0 ] && set -- \"$@\" --text '" + file +
                             "' || set -- \"$@\" --text '" + other + "'; exec \"$@\"";
  Arguments launch = {"launch", "-n", "2", "--", "sh", "-c", choose, "sh", GPIPE_COMMAND};
  launch.insert(launch.end(), command.begin(), command.end());
  const Outcome texts = run_gpipe(launch);
  EXPECT_EQ(texts.exit_code, 1) << texts.out << texts.err;
  EXPECT_THAT(texts.err, HasSubstr("'--text: "));
  EXPECT_THAT(texts.err, Not(HasSubstr("same call")));
}

TEST_F(TrainProcesses, WhatIsWrongWithTheDataIsToldByOneOfThem) {
  folder_.write("train-images-idx3-ubyte", "no images");
  const Outcome refused = launch("refused", {});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("[0] gpipe: "));
  EXPECT_THAT(refused.err, Not(HasSubstr("[1] ")));
}

TEST_F(TrainProcesses, AnotherNumberOfThemIsRefusedWithARemedy) {
  Arguments command = {"launch", "-n", "3", "--", GPIPE_COMMAND};
  const Arguments train = arguments("other", {});
  command.insert(command.end(), train.begin(), train.end());
  const Outcome refused = run_gpipe(command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("[0] gpipe: --stages is 2, but gpipe launch started 3 processes"));
  EXPECT_THAT(refused.err, HasSubstr("gpipe launch -n 2"));
  for (const char* other : {"[1] ", "[2] "}) EXPECT_THAT(refused.err, Not(HasSubstr(other)));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("other.save")));
}

}  // namespace
}  // namespace gpipe::cli
