// What gpipe train makes of a folder of checkpoints that is damaged, cannot be read or is to be replaced, and of
// signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "run_command.h"
#include "tests/cli/launch/running_command.h"
#include "tests/os/file_limits.h"
#include "tests/train/image_files.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ResumeLm : public ::testing::Test {
 protected:
  ResumeLm() {
    std::string text;
    for (int line = 0; line < 400; ++line) text += "the cat sat on the mat and the dog ran off\n";
    folder_.write("text.txt", text);
  }

  Arguments command(const Arguments& more) const {
    Arguments arguments = {"train",
                           "lm",
                           "--text",
                           folder_.path("text.txt"),
                           "--model",
                           "transformer-lm:1,16,16,2",
                           "--vocabulary",
                           "275",
                           "--batch-size",
                           "16",
                           "--micro-batches",
                           "4",
                           "--lr-schedule",
                           "constant",
                           "--warmup",
                           "0",
                           "--sequence-length",
                           "16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // The same with another value of an option that it has.
  static Arguments with(Arguments arguments, const std::string& option, const std::string& value) {
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = value;
    return arguments;
  }
  Outcome train(const Arguments& more) const { return run_gpipe(command(more)); }
  // Leaves the checkpoints of these many steps.
  void train_in_run(const std::string& steps) const {
    const Outcome outcome = train({"--steps", steps, "--checkpoint-every", "1", "--checkpoint-dir", run_});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  std::string checkpoint(int step) const { return run_ + "/step-000000000" + std::to_string(step); }
  static void damage(const std::string& file) {
    std::string bytes = read_file(file);
    ASSERT_FALSE(bytes.empty()) << file;
    bytes.back() ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }

  const TemporaryFolder folder_;
  const std::string run_ = folder_.path("run");
};

TEST_F(ResumeLm, TakesTheVocabularyOfACheckpointThatIsNotDamaged) {
  train_in_run("3");
  damage(checkpoint(3) + "/model-00001-of-00002.safetensors");
  std::filesystem::resize_file(checkpoint(2) + "/manifest.json", 10);
  const Outcome resumed = train({"--steps", "4", "--checkpoint-dir", run_, "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("is damaged"), HasSubstr("after step 1")));
  for (const int step : {1, 4}) damage(checkpoint(step) + "/model-00001-of-00002.safetensors");
  const Outcome refused = train({"--steps", "5", "--checkpoint-dir", run_, "--resume"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("none of its checkpoints is whole"));
}

TEST_F(ResumeLm, OnOtherDataIsRefused) {
  train_in_run("2");
  std::string text = read_file(folder_.path("text.txt"));
  text.replace(text.find("the dog"), 7, "the mat");
  folder_.write("text.txt", text);
  const Outcome refused = train({"--steps", "3", "--checkpoint-dir", run_, "--resume"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("was saved in a training on other data"));
}

TEST_F(ResumeLm, OfWeightsAndTheLastCheckpointOneIsSavedIfTheOtherCannotBe) {
  const std::string weights = folder_.path("weights/lm.safetensors");
  // Ends a training that has lost a folder: there is a file in its place.
  const auto end_without = [&](const std::string& lost) {
    std::filesystem::create_directories(folder_.path("weights"));
    Arguments arguments = command({"--steps", "100000", "--save", weights, "--checkpoint-dir", run_, "--force"});
    arguments.insert(arguments.begin(), GPIPE_COMMAND);
    RunningCommand running(arguments);
    EXPECT_TRUE(running.prints("step 1/"));
    std::filesystem::remove_all(lost);
    std::ofstream(lost) << "x";
    running.send(SIGTERM);
    const Outcome outcome = running.finish();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(lost), HasSubstr("Not a directory")));
    std::filesystem::remove(lost);
  };
  end_without(folder_.path("weights"));
  EXPECT_TRUE(std::filesystem::exists(run_ + "/latest"));
  end_without(run_);
  EXPECT_TRUE(std::filesystem::exists(weights));
}

TEST_F(ResumeLm, WeightsOfACheckpointBeginAnotherTraining) {
  train_in_run("2");
  const std::string file = folder_.path("weights.safetensors");
  ASSERT_EQ(run_gpipe({"convert", run_, file}).exit_code, 0);
  ASSERT_EQ(train({"--steps", "1", "--weights", file, "--save", folder_.path("of_file")}).exit_code, 0);
  for (const std::string& weights : {run_, checkpoint(2), checkpoint(2) + "/model.safetensors.index.json"}) {
    const std::string saved = folder_.path("of_checkpoint");
    const Outcome outcome = train({"--steps", "1", "--weights", weights, "--save", saved, "--force"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(read_file(saved) == read_file(folder_.path("of_file"))) << weights;
  }
  Arguments ranks = {"launch", "-n", "2", "--", GPIPE_COMMAND};
  const std::string saved = folder_.path("of_ranks");
  for (const std::string& word : command({"--steps", "1", "--weights", run_, "--save", saved})) ranks.push_back(word);
  const Outcome outcome = run_gpipe(ranks);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(read_file(saved) == read_file(folder_.path("of_file")));
}

TEST_F(ResumeLm, ForceRemovesCheckpointsOnceTheNewTrainingHasItsWeights) {
  train_in_run("2");
  const std::string file = folder_.path("other.safetensors");
  Arguments other = command({"--steps", "1", "--save", file});
  std::replace(other.begin(), other.end(), std::string("transformer-lm:1,16,16,2"),
               std::string("transformer-lm:2,16,16,2"));
  ASSERT_EQ(run_gpipe(other).exit_code, 0);
  EXPECT_EQ(train({"--steps", "1", "--checkpoint-dir", run_, "--force", "--weights", file}).exit_code, 1);
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2)));
  const Outcome outcome = train({"--steps", "1", "--checkpoint-dir", run_, "--force", "--weights", run_});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("removed 2 checkpoints"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint(2)));
}

TEST_F(ResumeLm, TellsWhichOptionsOfTheOptimizerStay) {
  train_in_run("1");
  const Outcome outcome =
      train({"--steps", "2", "--checkpoint-dir", run_, "--resume", "--weight-decay", "0.5", "--lr", "0.002"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("the weight decay stays 0.01"), HasSubstr("and is not 0.5"),
                                 HasSubstr("the learning rate is now constant at"), Not(HasSubstr("note: lr"))));
  EXPECT_THAT(run_gpipe({"inspect", run_}).out, HasSubstr("weight_decay 0.01"));
}

TEST_F(ResumeLm, ATrainingThatIsRefusedLeavesNoFolder) {
  const std::string weights = folder_.path("weights");
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  const Arguments begun = command({"--checkpoint-dir", folder_.path("new/run"), "--weights", weights});
  for (const Arguments& refused :
       {with(begun, "--text", folder_.path("absent")), with(begun, "--sequence-length", "1000000"),
        with(begun, "--model", "transformer-lm:1,32,32,2")}) {
    const Outcome outcome = run_gpipe(refused);
    EXPECT_THAT(outcome.exit_code, AnyOf(1, 2)) << outcome.out;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("new/run"))) << outcome.err;
  }
}

TEST_F(ResumeLm, AVocabularyThatIsTooLargeForTheTextIsBadUsageWithTheBound) {
  const Outcome outcome = run_gpipe(with(command({}), "--vocabulary", "4000"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--vocabulary is 4000, but "), HasSubstr(" ids at most")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("Vocabulary size too high")));
}

TEST_F(ResumeLm, APathThatCannotBeLookedAtIsNoDefect) {
  const std::string loop = folder_.path("loop");
  std::filesystem::create_symlink(loop, loop);
  for (const Arguments& arguments : {Arguments{"inspect", loop},
                                     {"inspect", loop + "/run", "--json"},
                                     {"convert", loop, folder_.path("to")},
                                     {"convert", folder_.path("text.txt"), loop},
                                     {"eval", "--weights", loop},
                                     {"generate", "--weights", loop},
                                     command({"--weights", loop}),
                                     command({"--checkpoint-dir", loop}),
                                     command({"--checkpoint-dir", loop + "/run", "--resume"})}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_THAT(outcome.exit_code, AnyOf(1, 2)) << arguments.front();
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, Not(HasSubstr("internal error"))) << arguments.front();
  }
}

TEST_F(ResumeLm, InspectAndConvertTreatEverySetAlikeAndNoCheckpointIsConvertedInto) {
  train_in_run("1");
  const std::string parts = folder_.path("parts");
  ASSERT_EQ(run_gpipe({"convert", run_, parts, "--shard-size", "8KiB"}).exit_code, 0);
  const std::string index = parts + "/model.safetensors.index.json";
  const std::string sound = read_file(index);
  EXPECT_EQ(run_gpipe({"inspect", parts}).exit_code, 0);
  const auto json = nlohmann::json::parse(sound);
  auto more = json;
  more["weight_map"]["none"] = json["weight_map"].begin().value();
  auto less = json;
  less["weight_map"].erase(less["weight_map"].begin().key());
  for (const auto& bad : {more, less}) {
    std::ofstream(index) << bad.dump();
    const std::string to = folder_.path("to");
    for (const Arguments& command :
         {Arguments{"inspect", parts}, {"inspect", index, "--json"}, {"convert", parts, to}}) {
      const Outcome outcome = run_gpipe(command);
      EXPECT_EQ(outcome.exit_code, 1) << command.front();
      EXPECT_EQ(outcome.out, "");
      EXPECT_THAT(outcome.err, HasSubstr("fetch all of them again"));
    }
  }
  std::filesystem::create_directory(folder_.path("single"));
  ASSERT_EQ(run_gpipe({"convert", run_, folder_.path("single/model.safetensors")}).exit_code, 0);
  const Outcome single = run_gpipe({"inspect", folder_.path("single")});
  EXPECT_EQ(single.exit_code, 0) << single.err;
  EXPECT_THAT(single.out, HasSubstr("gpipe.vocabulary"));
  for (const std::string& to : {run_, checkpoint(1)}) {
    const Outcome refused = run_gpipe({"convert", folder_.path("single"), to, "--shard-size", "1MiB", "--force"});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("holds checkpoints"));
  }
  EXPECT_EQ(run_gpipe({"inspect", run_}).exit_code, 0);
}

TEST_F(ResumeLm, ASecondTrainingInTheFolderIsRefusedAndTheFirstGoesOn) {
  Arguments words =
      command({"--steps", "100000", "--checkpoint-every", "1", "--keep-last", "2", "--checkpoint-dir", run_});
  words.insert(words.begin(), GPIPE_COMMAND);
  RunningCommand first(words);
  ASSERT_TRUE(appears(run_ + "/latest"));
  for (const char* how : {"--resume", "--force"}) {
    const Outcome second = train({"--steps", "100000", "--checkpoint-dir", run_, how});
    EXPECT_EQ(second.exit_code, 1) << second.out;
    EXPECT_THAT(second.err, AllOf(HasSubstr("another training saves its checkpoints here: process "),
                                  HasSubstr(" on host "), HasSubstr("name another folder")));
  }
  // Whoever reads is not kept out.
  EXPECT_EQ(run_gpipe({"generate", "--weights", run_, "--prompt", "the cat", "--tokens", "3"}).exit_code, 0);
  first.send(SIGTERM);
  const Outcome ended = first.finish();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("interrupted after step"));
  EXPECT_THAT(ended.out, Not(HasSubstr("was not saved")));
  const Outcome resumed = train({"--steps", "1", "--checkpoint-dir", run_, "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(ResumeLm, TheFolderOfATrainingThatWasKilledIsFreeAtOnce) {
  Arguments words = command({"--steps", "100000", "--checkpoint-every", "1", "--checkpoint-dir", run_});
  words.insert(words.begin(), GPIPE_COMMAND);
  RunningCommand first(words);
  ASSERT_TRUE(appears(run_ + "/latest"));
  first.send(SIGKILL);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGKILL);
  const Outcome resumed = train({"--steps", "1", "--checkpoint-dir", run_, "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(ResumeLm, AFolderThatCannotBeLockedIsToldOfAndTheTrainingGoesOn) {
  const Arguments arguments = command({"--steps", "1", "--checkpoint-dir", run_});
  const Outcome outcome = run_gpipe(arguments, "", {"LD_PRELOAD=" GPIPE_NO_LOCKS});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("note: " + run_ + " cannot be locked (No locks available)"));
}

TEST_F(ResumeLm, WhatCannotBeALockOrLatestIsToldBeforeTheTraining) {
  for (const char* name : {"lock", "latest"}) {
    const std::string folder = run_ + name;
    std::filesystem::create_directory(folder);
    ASSERT_EQ(mkfifo((folder + "/" + name).c_str(), 0600), 0);
    const Outcome outcome = train({"--steps", "1", "--checkpoint-dir", folder});
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(folder), HasSubstr(name), HasSubstr("remove it")));
    EXPECT_THAT(outcome.out, Not(HasSubstr("step 1")));
  }
}

TEST_F(ResumeLm, SavedWeightsThatAreDamagedAreToldByWhoeverReadsThem) {
  const std::string weights = folder_.path("weights.safetensors");
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  const Outcome sound = run_gpipe({"inspect", weights});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.out, AllOf(HasSubstr("sound"), Not(HasSubstr("DAMAGED"))));
  damage(weights);
  const Outcome inspected = run_gpipe({"inspect", weights});
  EXPECT_EQ(inspected.exit_code, 1);
  EXPECT_THAT(inspected.out, HasSubstr("DAMAGED"));
  EXPECT_EQ(nlohmann::json::parse(run_gpipe({"inspect", weights, "--json"}).out).at("sound"), false);
  const std::string to = folder_.path("to.safetensors");
  for (const Arguments& arguments : {Arguments{"convert", weights, to},
                                     {"generate", "--weights", weights, "--prompt", "the"},
                                     {"eval", "--weights", weights},
                                     command({"--steps", "1", "--weights", weights})}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 1) << arguments.front();
    EXPECT_THAT(outcome.err, HasSubstr(weights + " is damaged")) << arguments.front();
  }
  EXPECT_FALSE(std::filesystem::exists(to));
}

TEST_F(ResumeLm, ConvertReplacesNothingButPlainFiles) {
  const std::string weights = folder_.path("weights.safetensors");
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  folder_.write("file", "mine");
  std::filesystem::create_symlink("file", folder_.path("link"));
  std::filesystem::create_symlink("/dev/null", folder_.path("device"));
  ASSERT_EQ(mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "device", "pipe"}) {
    for (const Arguments& arguments : {Arguments{"convert", weights, folder_.path(name), "--force"},
                                       command({"--steps", "1", "--force", "--save", folder_.path(name)})}) {
      const Outcome outcome = run_gpipe(arguments);
      EXPECT_EQ(outcome.exit_code, 2) << name;
      EXPECT_EQ(outcome.out, "");
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("not a plain file"), HasSubstr("name another file"))) << name;
    }
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("device")));
  EXPECT_TRUE(std::filesystem::is_fifo(folder_.path("pipe")));
  EXPECT_EQ(read_file(folder_.path("file")), "mine");
  const Outcome replaced = run_gpipe({"convert", weights, folder_.path("file"), "--force"});
  EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_EQ(read_file(folder_.path("file")), read_file(weights));
}

TEST_F(ResumeLm, BeyondTheLimitOfFileSizesNothingIsLostWithoutAWord) {
  const std::string weights = folder_.path("weights.safetensors");
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  const std::string before = read_file(weights);
  {
    const FileSizeLimit limit(10000);
    for (const Arguments& arguments :
         {command({"--steps", "1", "--save", weights, "--force"}), Arguments{"convert", weights, weights, "--force"},
          command({"--steps", "1", "--checkpoint-dir", run_}),
          command({"--steps", "200", "--metrics", folder_.path("metrics")})}) {
      const Outcome outcome = run_gpipe(arguments);
      EXPECT_EQ(outcome.exit_code, 1) << arguments.front();
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f"))) << arguments.front();
    }
  }
  EXPECT_TRUE(read_file(weights) == before);
}

TEST_F(ResumeLm, ALatestThatIsNoFileKeepsNobodyWaiting) {
  train_in_run("2");
  std::filesystem::remove(run_ + "/latest");
  std::filesystem::create_symlink("/dev/zero", run_ + "/latest");
  EXPECT_EQ(run_gpipe({"inspect", run_}).exit_code, 0);
  std::filesystem::remove(run_ + "/latest");
  ASSERT_EQ(mkfifo((run_ + "/latest").c_str(), 0600), 0);
  EXPECT_EQ(run_gpipe({"inspect", run_}).exit_code, 0);
}

TEST(Inspect, PrintsNothingThatTurnsALineAround) {
  const TemporaryFolder folder;
  const std::string header =
      "{\"__metadata__\":{\"ke\u202ey\":\"a\u2066b\u200f\u200bc\"},"
      "\"w\u202e\u061c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  const std::string file = folder.write("hostile\u202efile", length + header + "x");
  for (const Arguments& arguments : {Arguments{"inspect", file}, {"inspect", file, "--json"}}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const char* mark : {"\u202e", "\u2066", "\u200f", "\u200b", "\u061c"}) {
      EXPECT_THAT(outcome.out, Not(HasSubstr(mark)));
    }
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("w\\u202e\\u061c"), HasSubstr("a\\u2066b\\u200f\\u200bc")));
  }
  const auto json = nlohmann::json::parse(run_gpipe({"inspect", file, "--json"}).out);
  EXPECT_EQ(json.at("path"), file);
  EXPECT_EQ(json.at("tensors").at(0).at("name"), "w\u202e\u061c");
}

// Evaluation takes much longer than a step, and an epoch is one step.
TEST(ResumeImage, AnEvaluationDoesNotHoldUpWhoEndsTheTraining) {
  const TemporaryFolder folder;
  write_images(folder, "train", 16);
  write_images(folder, "t10k", 4000);
  const std::string run = folder.path("run");
  const auto command = [&](const Arguments& more) {
    Arguments arguments = {"train",           "image",    "--data-dir",       folder.path(""),
                           "--model",         "resnet20", "--batch-size",     "16",
                           "--micro-batches", "4",        "--checkpoint-dir", run};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const Outcome between = run_gpipe_with_signal(command({"--epochs", "9"}), "step 1/", SIGTERM);
  EXPECT_EQ(between.exit_code, 0) << between.err;
  EXPECT_THAT(between.out, AllOf(HasSubstr("interrupted after step 1"), Not(HasSubstr("test_accuracy"))));
  EXPECT_TRUE(std::filesystem::exists(run + "/step-0000000001"));
  const Outcome last = run_gpipe_with_signal(command({"--epochs", "2", "--resume"}), "evaluating", SIGTERM);
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.out, Not(HasSubstr("test_accuracy")));
  EXPECT_TRUE(std::filesystem::exists(run + "/step-0000000002"));
  // Who begins again is told the result.
  write_images(folder, "t10k", 20);
  const Outcome done = run_gpipe(command({"--epochs", "2", "--resume"}));
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("test_accuracy"));
}

}  // namespace
}  // namespace gpipe::cli
