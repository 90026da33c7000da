// gpipe train, eval, translate and generate from end to end, on data of a few samples that the tests make.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "run_command.h"
#include "tests/train/help_files.h"

namespace gpipe::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::Truly;

std::string idx(const std::vector<int>& dims, const std::string& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(dims.size())};
  for (const int dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift);
  }
  return bytes + values;
}

// Fashion-MNIST in small: images whose class can be seen, a bright row that depends on it.
void write_images(const TemporaryFolder& folder, const std::string& prefix, int count) {
  std::mt19937 random(7);
  std::string pixels;
  std::string labels;
  for (int image = 0; image < count; ++image) {
    const int label = image % 10;
    for (int place = 0; place < 28 * 28; ++place) {
      pixels += static_cast<char>(random() % 60 + (place / 28 / 2 == label ? 180 : 0));
    }
    labels += static_cast<char>(label);
  }
  folder.write(prefix + "-images-idx3-ubyte", idx({count, 28, 28}, pixels));
  folder.write(prefix + "-labels-idx1-ubyte", idx({count}, labels));
}

class TrainImage : public ::testing::Test {
 protected:
  TrainImage() {
    write_images(folder_, "train", 64);
    write_images(folder_, "t10k", 20);
  }

  Outcome train(const Arguments& more) const {
    Arguments arguments = {"train",           "image",        "--data-dir", folder_.path(""),  "--model",
                           "resnet-cifar:20", "--batch-size", "16",         "--micro-batches", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  }

  const TemporaryFolder folder_;
};

// All float32 values of a safetensors file.
std::vector<float> weights_in(const std::string& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::vector<float> values;
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || entry.at("dtype") != "F32") continue;
    const auto begin = entry.at("data_offsets")[0].get<std::size_t>();
    const auto end = entry.at("data_offsets")[1].get<std::size_t>();
    const std::size_t first = values.size();
    values.resize(first + (end - begin) / sizeof(float));
    std::memcpy(values.data() + first, bytes.data() + 8 + length + begin, end - begin);
  }
  return values;
}

// How another program would write weights: with its own metadata or none, a prefix, without the counters of batch
// norms.
struct Foreign {
  nlohmann::json metadata = nullptr;
  std::string prefix;
  bool has_counters = true;
  float head_scale = 1;  // of linear.weight, so that the last bits of the scores can be seen
};

std::string written_as(const Foreign& foreign, const std::string& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  nlohmann::json header = nlohmann::json::object();
  if (!foreign.metadata.is_null()) header["__metadata__"] = foreign.metadata;
  std::string data;
  const auto old_header = nlohmann::json::parse(bytes.substr(8, length));
  for (const auto& [name, entry] : old_header.items()) {
    if (name == "__metadata__") continue;
    if (!foreign.has_counters && name.find("num_batches_tracked") != std::string::npos) continue;
    const auto begin = entry.at("data_offsets")[0].get<std::size_t>();
    std::string values = bytes.substr(8 + length + begin, entry.at("data_offsets")[1].get<std::size_t>() - begin);
    if (name == "linear.weight") {
      std::vector<float> weights(values.size() / sizeof(float));
      std::memcpy(weights.data(), values.data(), values.size());
      for (float& weight : weights) weight *= foreign.head_scale;
      std::memcpy(values.data(), weights.data(), values.size());
    }
    header[foreign.prefix + name] = {{"dtype", entry.at("dtype")},
                                     {"shape", entry.at("shape")},
                                     {"data_offsets", {data.size(), data.size() + values.size()}}};
    data += values;
  }
  const std::string text = header.dump();
  length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

std::string value_of(const std::string& out, const std::string& name) {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, name.size(), name) == 0) return line.substr(line.find_first_not_of(" :", name.size()));
  }
  return "";
}

TEST_F(TrainImage, TheWeightsAndTheAccuracyAreTheSameForEveryNumberOfStages) {
  std::string weights;
  std::string accuracy;
  for (const char* stages : {"1", "2", "4"}) {
    const std::string file = folder_.path(std::string("k") + stages + ".safetensors");
    const Outcome outcome = train({"--stages", stages, "--steps", "3", "--augment", "--save", file});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("where the time went"), HasSubstr("peak")));
    ASSERT_FALSE(read_file(file).empty());
    if (weights.empty()) {
      weights = read_file(file);
      accuracy = value_of(outcome.out, "test_accuracy");
      EXPECT_THAT(accuracy, ContainsRegex("^[0-9.]+ % of 20 images"));
    }
    EXPECT_TRUE(read_file(file) == weights) << stages << " stages";
    EXPECT_EQ(value_of(outcome.out, "test_accuracy"), accuracy);
  }
  const Outcome outcome =
      run_gpipe({"eval", "--weights", folder_.path("k1.safetensors"), "--data-dir", folder_.path("")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(value_of(outcome.out, "test_accuracy"), accuracy);
}

class EvalImage : public TrainImage {
 protected:
  void SetUp() override {
    const Outcome outcome = train({"--steps", "2", "--save", folder_.path("own.safetensors")});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    own_ = read_file(folder_.path("own.safetensors"));
    accuracy_ = value_of(outcome.out, "test_accuracy");
  }

  std::string write(const Foreign& foreign) const {
    return folder_.write("foreign.safetensors", written_as(foreign, own_));
  }
  Outcome eval(const Arguments& more) const {
    Arguments arguments = {"eval", "image", "--data-dir", folder_.path("")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  }

  std::string own_;
  std::string accuracy_;
};

TEST_F(EvalImage, ReadsTheWeightsOfOtherPrograms) {
  const nlohmann::json format = {{"format", "pt"}};
  for (const Foreign& foreign : {Foreign{}, Foreign{format, "", true, 1}, Foreign{format, "", false, 1},
                                 Foreign{nullptr, "module.", false, 1}}) {
    const Outcome outcome = eval({"--model", "resnet20", "--data", "fashion-mnist", "--weights", write(foreign)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(value_of(outcome.out, "test_accuracy"), accuracy_);
  }
}

TEST_F(EvalImage, PrintsTheSameBitsForEveryNumberOfStages) {
  const std::string file = write({nullptr, "", true, 1e7F});
  std::string printed;
  for (const char* stages : {"1", "2", "4"}) {
    const Outcome outcome =
        eval({"--model", "resnet20", "--data", "fashion-mnist", "--weights", file, "--stages", stages});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    if (printed.empty()) printed = outcome.out;
    EXPECT_EQ(outcome.out, printed) << stages << " stages";
  }
  EXPECT_GT(std::stod(value_of(printed, "test_loss")), 1e4);
}

TEST_F(EvalImage, SaysWhatAFileDoesNotSay) {
  const std::string file = write({});
  const Outcome nothing = run_gpipe({"eval", "--weights", file});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("gpipe eval image --model"));
  const Outcome both = eval({"--weights", file});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, AllOf(HasSubstr("model, nor its data"), HasSubstr("add --model NAME --data NAME")));
  const Outcome one = eval({"--model", "resnet20", "--weights", file});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.err, AllOf(HasSubstr("add --data NAME"), Not(HasSubstr("--model"))));
  const Outcome none = eval({});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("add --weights FILE"));
}

// Building it would take minutes and all memory there is.
TEST_F(EvalImage, AModelFarLargerThanTheFileIsRefusedBeforeItIsBuilt) {
  for (const char* model : {"resnet-cifar:99998", "amoebanet-d:99999,999992", "amoebanet-d:3,999992"}) {
    Foreign foreign;
    foreign.metadata = {{"gpipe.task", "image"}, {"gpipe.model", model}, {"gpipe.data", "fashion-mnist"}};
    const Outcome outcome = run_gpipe({"eval", "--weights", write(foreign), "--data-dir", folder_.path("")});
    EXPECT_EQ(outcome.exit_code, 1) << model << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("but the model it is said to be of has more in its first")) << model;
  }
}

TEST_F(EvalImage, TheCommandLineWinsOverTheFile) {
  const Outcome outcome = eval({"--model", "resnet32", "--weights", folder_.path("own.safetensors")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("another model"));
}

TEST_F(EvalImage, RefusesWhatItHasNoUseFor) {
  const std::string file = folder_.path("own.safetensors");
  for (const Arguments& unused :
       {Arguments{"--beam", "2"}, {"--test-samples", "3"}, {"--text", folder_.path("t10k-labels-idx1-ubyte")}}) {
    for (const Arguments& command : {Arguments{"eval"}, {"eval", "image"}}) {
      Arguments arguments = command;
      arguments.insert(arguments.end(), {"--weights", file, "--data-dir", folder_.path("")});
      arguments.insert(arguments.end(), unused.begin(), unused.end());
      const Outcome outcome = run_gpipe(arguments);
      EXPECT_EQ(outcome.exit_code, 2) << unused.front();
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(unused.front()), HasSubstr("gpipe eval image --help")));
    }
  }
  const Outcome wrong = run_gpipe({"eval", "lm", "--weights", file});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("'gpipe train image'"), HasSubstr("'gpipe eval lm'")));
}

TEST_F(TrainImage, WritesMetricsTraceAndEventFiles) {
  const Outcome outcome = train({"--stages", "2", "--balance", "30,", "--steps", "1"});
  EXPECT_EQ(outcome.exit_code, 2);
  const Outcome good = train({"--stages", "2", "--steps", "3", "--schedule", "gpipe", "--recompute", "always",
                              "--metrics", folder_.path("metrics.jsonl"), "--trace", folder_.path("trace.json"),
                              "--tensorboard", folder_.path("events")});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  std::istringstream lines(read_file(folder_.path("metrics.jsonl")));
  int num_steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("loss")) continue;
    EXPECT_EQ(json.at("step"), ++num_steps);
  }
  EXPECT_EQ(num_steps, 3);
  EXPECT_GT(nlohmann::json::parse(read_file(folder_.path("trace.json"))).at("traceEvents").size(), 20U);
  EXPECT_FALSE(std::filesystem::is_empty(folder_.path("events")));
}

TEST_F(TrainImage, RunsAPlanToTheSameWeights) {
  const std::string profile = folder_.path("profile.json");
  const std::string plan = folder_.path("plan.json");
  EXPECT_EQ(run_gpipe({"profile", "--model", "resnet-cifar:20", "--channels", "1", "--image", "28", "--samples", "4",
                       "--repeats", "1", "--out", profile})
                .exit_code,
            0);
  EXPECT_EQ(run_gpipe({"plan", "--profile", profile, "--stages", "2", "--micro-batches", "4", "--schedule", "gpipe",
                       "--recompute", "always", "--out", plan})
                .exit_code,
            0);
  const Arguments common = {"train",           "image",        "--data-dir", folder_.path(""), "--model",
                            "resnet-cifar:20", "--batch-size", "16",         "--steps",        "2"};
  const auto train_with = [&](const Arguments& more) {
    Arguments arguments = common;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments);
  };
  const Outcome planned = train_with({"--plan", plan, "--save", folder_.path("planned.safetensors")});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, AllOf(HasSubstr("2 stages, 4 micro-batches, gpipe"), HasSubstr("predicted"),
                                 ContainsRegex("planned step +[0-9.e-]+ s predicted, [0-9.e-]+ s measured"),
                                 ContainsRegex("1 +recompute +4 ")));
  const Outcome plain =
      train_with({"--stages", "1", "--micro-batches", "4", "--save", folder_.path("plain.safetensors")});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(weights_in(folder_.path("planned.safetensors")), weights_in(folder_.path("plain.safetensors")));

  const Outcome twice = train_with({"--plan", plan, "--stages", "3"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err,
              AllOf(HasSubstr("--stages and --plan do not go together"), HasSubstr("leave one of them out")));
  const Outcome other = run_gpipe({"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:32",
                                   "--batch-size", "16", "--plan", plan});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("the plan is of another model"), Not(HasSubstr("--balance"))));
  const Outcome not_a_plan = train_with({"--plan", profile});
  EXPECT_EQ(not_a_plan.exit_code, 2);
  EXPECT_THAT(not_a_plan.err, AllOf(HasSubstr("profile.json': line 2"), HasSubstr("gpipe plan --out")));
}

TEST_F(TrainImage, RunsASearchedScheduleAndItsPlanToTheSameWeights) {
  const std::string profile = folder_.path("profile.json");
  const std::string plan = folder_.path("plan.json");
  ASSERT_EQ(run_gpipe({"profile", "--model", "resnet-cifar:20", "--channels", "1", "--image", "28", "--samples", "4",
                       "--repeats", "1", "--out", profile})
                .exit_code,
            0);
  const Outcome found = run_gpipe({"schedule", "search", "--profile", profile, "--stages", "2", "--micro-batches", "4",
                                   "--seconds", "0.1", "--plan", plan});
  ASSERT_EQ(found.exit_code, 0) << found.err;
  std::string said;
  const auto weights_after = [&](const std::string& name, Arguments arguments) {
    const std::string file = folder_.path(name + ".safetensors");
    arguments.insert(arguments.begin(), {"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:20",
                                         "--batch-size", "16", "--steps", "2", "--save", file});
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.err;
    said = outcome.out;
    return weights_in(file);
  };
  const std::vector<float> plain = weights_after("plain", {"--stages", "1", "--micro-batches", "4"});
  EXPECT_EQ(weights_after("planned", {"--plan", plan}), plain);
  EXPECT_EQ(weights_after("searched", {"--stages", "2", "--micro-batches", "4", "--schedule", "search"}), plain);
  EXPECT_THAT(said, AllOf(HasSubstr("2 workers, 4 micro-batches, search"),
                          ContainsRegex("search found +[0-9]+ stages.*, simulated bubble [0-9.]+ %, activations of at "
                                        "most [0-9.]+ micro-batches")));
}

TEST_F(TrainImage, TellsWorkersFromStages) {
  const Outcome outcome = train({"--stages", "2", "--steps", "1", "--schedule", "zb-v"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 workers with 4 stages, 4 micro-batches, zb-v"));
}

TEST_F(TrainImage, HelpOfAPlanNamesBothCommandsThatWriteOne) {
  const Outcome outcome = run_gpipe({"train", "image", "--help"});
  EXPECT_THAT(outcome.out, AllOf(ContainsRegex("gpipe[ \n]+plan[ \n]+--out"),
                                 ContainsRegex("gpipe[ \n]+schedule[ \n]+search[ \n]+--plan")));
}

TEST_F(TrainImage, OffersOnlySchedulesThatTrain) {
  for (const char* const name : {"forward", "wrong"}) {
    const Outcome outcome = train({"--schedule", name});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("--schedule: '" + std::string(name) + "' is not one of gpipe, 1f1b, "),
                                   HasSubstr("dualpipe-v, search"), Not(HasSubstr(", forward"))));
  }
}

TEST_F(TrainImage, TooFewSamplesForTheMicroBatchesAreRefused) {
  const Outcome outcome = train({"--samples", "3", "--steps", "1"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("--samples 3 makes micro-batches of one image"), HasSubstr("raise --samples")));
  EXPECT_EQ(train({"--samples", "8", "--steps", "1"}).exit_code, 0);
}

TEST_F(TrainImage, NeverOverwritesUnlessForced) {
  const std::string file = folder_.write("mine", "precious");
  for (const char* option : {"--save", "--trace", "--metrics"}) {
    const Outcome outcome = train({"--steps", "1", option, file});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("mine"), HasSubstr("--force")));
  }
  EXPECT_EQ(read_file(file), "precious");
  EXPECT_EQ(train({"--steps", "1", "--save", file, "--force"}).exit_code, 0);
  EXPECT_NE(read_file(file), "precious");
}

TEST_F(TrainImage, ALossThatIsNotFiniteEndsItWithTheLastGoodWeights) {
  const std::string file = folder_.path("last.safetensors");
  const Outcome outcome = train({"--stages", "2", "--steps", "30", "--optimizer", "sgd", "--lr", "1e25", "--warmup",
                                 "0", "--clip", "0", "--save", file});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_THAT(outcome.out + outcome.err, AllOf(HasSubstr("not finite"), HasSubstr("--lr")));
  EXPECT_THAT(weights_in(file), AllOf(Not(IsEmpty()), Each(Truly([](float value) { return std::isfinite(value); }))));
}

TEST_F(TrainImage, AnInterruptEndsTheStepAndKeepsTheWeights) {
  const std::string file = folder_.path("interrupted.safetensors");
  const Outcome outcome = run_gpipe_with_signal(
      {"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:20", "--batch-size", "16", "--stages",
       "2", "--micro-batches", "4", "--steps", "100000", "--save", file},
      "step 1/", SIGINT);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("interrupted after step"), HasSubstr("interrupted.safetensors")));
  EXPECT_THAT(weights_in(file), Not(IsEmpty()));
}

class Resume : public TrainImage {
 protected:
  Outcome train_in_run(const Arguments& more) const {
    Arguments arguments = {"--checkpoint-dir", run_, "--augment", "--lr-schedule", "constant"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(arguments);
  }
  void damage(const std::string& file) const {
    std::string bytes = read_file(file);
    ASSERT_FALSE(bytes.empty()) << file;
    bytes.back() ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }

  const std::string run_ = folder_.path("run");
};

TEST_F(Resume, InTheMiddleOfAnEpochEndsWithTheSameWeights) {
  const std::string straight = folder_.path("straight.safetensors");
  const std::string resumed = folder_.path("resumed.safetensors");
  ASSERT_EQ(
      train({"--augment", "--lr-schedule", "constant", "--stages", "1", "--steps", "7", "--save", straight}).exit_code,
      0);
  const std::string metrics = folder_.path("metrics.jsonl");
  const Arguments common = {"--save", resumed, "--metrics", metrics, "--checkpoint-every", "2", "--keep-last", "2"};
  const auto with = [&](Arguments more) {
    more.insert(more.end(), common.begin(), common.end());
    return train_in_run(more);
  };
  const Outcome first = with({"--stages", "2", "--steps", "5", "--resume"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("no checkpoint in"), HasSubstr("step-0000000005")));
  const Outcome second = with({"--stages", "4", "--steps", "7", "--resume", "--recompute", "always"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, AllOf(HasSubstr("resumed from"), HasSubstr("after step 5"), Not(HasSubstr("note:"))));
  EXPECT_TRUE(read_file(resumed) == read_file(straight));
  EXPECT_FALSE(std::filesystem::exists(run_ + "/step-0000000002"));
  // Once more, with nothing left to do.
  const Outcome third = train_in_run({"--stages", "1", "--steps", "7", "--resume"});
  ASSERT_EQ(third.exit_code, 0) << third.err;
  EXPECT_THAT(third.out, HasSubstr("after step 7: all steps were taken before"));
  EXPECT_EQ(value_of(third.out, "test_accuracy"), value_of(second.out, "test_accuracy"));

  std::istringstream lines(read_file(metrics));
  int num_steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("loss")) continue;
    EXPECT_EQ(json.at("step"), ++num_steps);
  }
  EXPECT_EQ(num_steps, 7);

  // A checkpoint is as good as its weights, and can be looked at and converted.
  const Outcome evaluated = run_gpipe({"eval", "--weights", run_, "--data-dir", folder_.path("")});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(value_of(evaluated.out, "test_accuracy"), value_of(second.out, "test_accuracy"));
  const Outcome inspected = run_gpipe({"inspect", run_});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, AllOf(HasSubstr("step 7"), HasSubstr("optimizer AdamW"), HasSubstr("exp_avg of"),
                                   HasSubstr("conv1.weight"), HasSubstr("sound"), Not(HasSubstr("DAMAGED"))));
  const auto json = nlohmann::json::parse(run_gpipe({"inspect", run_, "--json"}).out);
  EXPECT_EQ(json.at("manifest").at("step"), 7);
  EXPECT_EQ(json.at("sound"), true);
  const std::string converted = folder_.path("converted.safetensors");
  ASSERT_EQ(run_gpipe({"convert", run_, converted}).exit_code, 0);
  EXPECT_TRUE(read_file(converted) == read_file(straight));
  ASSERT_EQ(run_gpipe({"convert", converted, folder_.path("parts"), "--shard-size", "100KiB"}).exit_code, 0);
  const auto num_parts = [&] {
    const std::filesystem::directory_iterator files(folder_.path("parts"));
    return std::count_if(begin(files), end(files),
                         [](const auto& file) { return file.path().extension() == ".safetensors"; });
  };
  EXPECT_GT(num_parts(), 2);
  // Another set in its place leaves nothing of it.
  ASSERT_EQ(run_gpipe({"convert", run_, folder_.path("parts"), "--shard-size", "1GiB", "--force"}).exit_code, 0);
  EXPECT_EQ(num_parts(), 1);
  const std::string merged = folder_.path("merged.safetensors");
  ASSERT_EQ(run_gpipe({"convert", folder_.path("parts"), merged}).exit_code, 0);
  EXPECT_TRUE(read_file(merged) == read_file(straight));
  const Outcome again = run_gpipe({"convert", run_, merged});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("--force"));
}

TEST_F(Resume, AfterATerminationGoesOnWithTheSameBits) {
  const Arguments common = {"train",           "image",    "--data-dir",   folder_.path(""),
                            "--model",         "resnet20", "--batch-size", "16",
                            "--micro-batches", "4",        "--steps",      "12"};
  const std::string straight = folder_.path("straight.safetensors");
  const auto with = [&](const Arguments& more) {
    Arguments arguments = common;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  ASSERT_EQ(run_gpipe(with({"--save", straight})).exit_code, 0);
  const Outcome ended = run_gpipe_with_signal(with({"--checkpoint-dir", run_}), "step 1/", SIGTERM);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("interrupted after step"), HasSubstr("the same command and --resume")));
  const std::string resumed = folder_.path("resumed.safetensors");
  const Outcome outcome = run_gpipe(with({"--checkpoint-dir", run_, "--resume", "--stages", "3", "--save", resumed}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(read_file(resumed) == read_file(straight));
}

TEST_F(Resume, TellsWhatIsCutShortAndForceBeginsAnew) {
  ASSERT_EQ(train_in_run({"--steps", "2", "--checkpoint-every", "1"}).exit_code, 0);
  const auto cut = [&](const std::string& step) {
    std::filesystem::resize_file(run_ + "/" + step + "/model-00001-of-00002.safetensors", 100);
  };
  cut("step-0000000002");
  const Outcome inspected = run_gpipe({"inspect", run_});
  EXPECT_EQ(inspected.exit_code, 1);
  EXPECT_THAT(inspected.err, HasSubstr("has 100 bytes"));
  const Outcome resumed = train_in_run({"--steps", "3", "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("has 100 bytes"), HasSubstr("after step 1")));
  cut("step-0000000001");
  cut("step-0000000003");
  EXPECT_EQ(train_in_run({"--steps", "3"}).exit_code, 2);
  const Outcome refused = train_in_run({"--steps", "3", "--resume"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("none of its checkpoints is whole"));
  const Outcome anew = train_in_run({"--steps", "1", "--force"});
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_THAT(anew.out, HasSubstr("removed 3 checkpoints"));
  EXPECT_FALSE(std::filesystem::exists(run_ + "/step-0000000003"));
  const Outcome unwritable = train({"--steps", "1", "--checkpoint-dir", "/proc/none"});
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_THAT(unwritable.err, HasSubstr("can be written to"));
}

TEST_F(Resume, PassesOverWhatIsDamagedAndRefusesWhatDoesNotFit) {
  ASSERT_EQ(train_in_run({"--steps", "2", "--checkpoint-every", "1"}).exit_code, 0);
  const Outcome occupied = train_in_run({"--steps", "3"});
  EXPECT_EQ(occupied.exit_code, 2);
  EXPECT_THAT(occupied.err, AllOf(HasSubstr("holds a training already"), HasSubstr("--resume")));
  const Outcome other = train_in_run({"--steps", "3", "--resume", "--samples", "32"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("an epoch had 4 batches, and now it has 2"));
  const Outcome seed = train_in_run({"--steps", "3", "--resume", "--seed", "5"});
  EXPECT_EQ(seed.exit_code, 1);
  EXPECT_THAT(seed.err, HasSubstr("with the seed 0, but the pipeline has 5"));

  damage(run_ + "/step-0000000002/model-00001-of-00002.safetensors");
  const Outcome inspected = run_gpipe({"inspect", run_});
  EXPECT_EQ(inspected.exit_code, 1);
  EXPECT_THAT(inspected.out, HasSubstr("DAMAGED: has another hash"));
  const Outcome evaluated = run_gpipe({"eval", "--weights", run_, "--data-dir", folder_.path("")});
  EXPECT_EQ(evaluated.exit_code, 1);
  EXPECT_THAT(evaluated.err, HasSubstr("is damaged"));
  const Outcome resumed = train_in_run({"--steps", "3", "--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("is damaged"), HasSubstr("after step 1")));

  for (const Arguments& useless :
       {Arguments{"--resume"}, {"--checkpoint-every", "2"}, {"--keep-last", "2"}, {"--keep-every", "2"}}) {
    const Outcome refused = train(useless);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr(useless.front()), HasSubstr("add --checkpoint-dir")));
  }
  EXPECT_EQ(run_gpipe({"inspect"}).exit_code, 2);
  const Outcome missing = run_gpipe({"inspect", folder_.path("no-such-folder")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("there is no file and no folder of this name"));
}

TEST_F(TrainImage, OptionsMayComeFromAFile) {
  const std::string json =
      folder_.write("options.json", R"({"stages": 2, "steps": 1, "schedule": "gpipe", "balance": [30, 47]})");
  const Outcome outcome = train({"--config", json});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 stages, 4 micro-batches, gpipe"));
  const Outcome bad = train({"--config", folder_.write("bad.json", R"({"stagse": 2})")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("stages"));
}

TEST_F(TrainImage, WeightsOfAnotherModelAreRefused) {
  const std::string file = folder_.path("r20.safetensors");
  ASSERT_EQ(train({"--steps", "1", "--save", file}).exit_code, 0);
  const Outcome outcome = run_gpipe({"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:32",
                                     "--batch-size", "16", "--steps", "1", "--weights", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("another model"), HasSubstr("load them into the model they are of")));
  const std::string bytes = read_file(file);
  folder_.write("torn.safetensors", bytes.substr(0, bytes.size() / 2));
  const Outcome torn =
      run_gpipe({"eval", "--weights", folder_.path("torn.safetensors"), "--data-dir", folder_.path("")});
  EXPECT_EQ(torn.exit_code, 1);
  EXPECT_THAT(torn.err, AllOf(HasSubstr("cut short"), HasSubstr("write or fetch it again")));
  EXPECT_THAT(run_gpipe({"eval", "--weights", folder_.path("none")}).err,
              AllOf(HasSubstr("No such file or directory"), HasSubstr("check the path")));
  EXPECT_THAT(run_gpipe({"eval", "--weights", folder_.path("")}).err, HasSubstr("there is no whole checkpoint in it"));
}

TEST_F(TrainImage, BadDataIsOneLineThatSaysWhatToDo) {
  const auto expect_line = [&](const Outcome& outcome, const std::string& what) {
    EXPECT_THAT(outcome.exit_code, ::testing::AnyOf(1, 2));
    EXPECT_THAT(outcome.err, HasSubstr(what));
    EXPECT_THAT(outcome.out, Not(HasSubstr("step")));
  };
  expect_line(
      run_gpipe({"train", "image"}, "", {"GPIPE_DATA_DIR=" + folder_.path("none"), "HOME=" + folder_.path("none")}),
      "gpipe get-data fashion-mnist");
  folder_.write("train-labels-idx1-ubyte", idx({64}, std::string(64, 77)));
  expect_line(train({}), "label 77");
  folder_.write("train-labels-idx1-ubyte", "garbage");
  expect_line(train({}), "train-labels-idx1-ubyte");
  folder_.write("train-labels-idx1-ubyte.gz", std::string("\x1f\x8b\x08\x00\x00\x00", 6));
  expect_line(train({}), "train-labels-idx1-ubyte.gz");
}

TEST(TrainLm, ATextIsLearntAndContinued) {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 400; ++line) text += "the cat sat on the mat and the dog ran off\n";
  const std::string file = folder.write("text.txt", text);
  const std::string weights = folder.path("lm.safetensors");
  const Outcome outcome = run_gpipe({"train",
                                     "lm",
                                     "--text",
                                     file,
                                     "--model",
                                     "transformer-lm:2,32,64,2",
                                     "--vocabulary",
                                     "275",
                                     "--sequence-length",
                                     "16",
                                     "--batch-size",
                                     "16",
                                     "--stages",
                                     "2",
                                     "--micro-batches",
                                     "4",
                                     "--steps",
                                     "60",
                                     "--lr",
                                     "1e-2",
                                     "--warmup",
                                     "5",
                                     "--save",
                                     weights});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(std::stod(value_of(outcome.out, "dev_perplexity")), 3);
  const Outcome evaluated = run_gpipe({"eval", "--weights", weights, "--text", file});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(value_of(evaluated.out, "dev_perplexity"), value_of(outcome.out, "dev_perplexity"));
  const Outcome without_text = run_gpipe({"eval", "--weights", weights});
  EXPECT_EQ(without_text.exit_code, 1);
  EXPECT_THAT(without_text.err, HasSubstr("--text"));
  const Arguments generate = {"generate", "--weights", weights,         "--prompt", "the cat",
                              "--tokens", "30",        "--temperature", "0"};
  const Outcome continued = run_gpipe(generate);
  EXPECT_EQ(continued.exit_code, 0) << continued.err;
  EXPECT_THAT(continued.out, AllOf(HasSubstr("the cat sat on the"), HasSubstr("ran of")));
  EXPECT_EQ(run_gpipe(generate).out, continued.out);
  const Outcome wrong = run_gpipe({"translate", "--weights", weights}, "x\n");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("gpipe train translate"));
}

// The file with other metadata, which are texts: of the same length, so that nothing else moves.
std::string with_metadata(std::string bytes, const std::string& old_text, const std::string& new_text) {
  EXPECT_EQ(old_text.size(), new_text.size());
  const std::size_t at = bytes.find(old_text);
  EXPECT_NE(at, std::string::npos) << old_text;
  return at == std::string::npos ? bytes : bytes.replace(at, old_text.size(), new_text);
}

TEST(TrainLm, TheDataMayBeInAnotherFolder) {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 200; ++line) text += "in the beginning was the word and the word was short\n";
  folder.write("kjv.txt", text);
  const std::string weights = folder.path("lm.safetensors");
  const Arguments nowhere = {"GPIPE_DATA_DIR=" + folder.path("none")};
  const Arguments there = {"--data-dir", folder.path("")};
  const auto run = [&](Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_gpipe(arguments, "", nowhere);
  };
  const Arguments train = {"train",
                           "lm",
                           "--model",
                           "transformer-lm:1,16,16,2",
                           "--sequence-length",
                           "8",
                           "--vocabulary",
                           "275",
                           "--batch-size",
                           "8",
                           "--stages",
                           "1",
                           "--steps",
                           "2",
                           "--save",
                           weights};
  const Outcome trained = run(train, there);
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const Arguments& command : {Arguments{"eval", "--weights", weights}, {"eval", "lm", "--weights", weights}}) {
    const Outcome outcome = run(command, there);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(value_of(outcome.out, "dev_perplexity"), value_of(trained.out, "dev_perplexity"));
    const Outcome missing = run(command, {});
    EXPECT_EQ(missing.exit_code, 2);
    EXPECT_THAT(missing.err, HasSubstr("run gpipe get-data kjv"));
  }
  for (const char* length : {"0", "x"}) {
    const std::string bad = with_metadata(read_file(weights), R"("gpipe.sequence_length":"8")",
                                          std::string(R"("gpipe.sequence_length":")") + length + '"');
    const Outcome outcome = run({"eval", "--weights", folder.write("bad.safetensors", bad)}, there);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("not a number from 1 to 1000000"));
  }
  std::filesystem::create_directory(folder.path("empty"));
  const Outcome gone = run({"eval", "--weights", weights, "--data-dir", folder.path("empty")}, {});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, HasSubstr("no file kjv.txt in it; run gpipe get-data kjv"));
  const Outcome both = run({"eval", "lm", "--weights", weights, "--text", folder.path("kjv.txt")}, there);
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("--text and --data-dir both say what to read"));
}

// The address space of this process and those it starts, until the end of the test.
class AddressSpace {
 public:
  explicit AddressSpace(rlim_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit limited = before_;
    limited.rlim_cur = std::min(bytes, before_.rlim_max);
    setrlimit(RLIMIT_AS, &limited);
  }
  ~AddressSpace() { setrlimit(RLIMIT_AS, &before_); }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

 private:
  rlimit before_{};
};

TEST(TrainLm, AModelTooLargeForTheMemoryIsOneLine) {
  const TemporaryFolder folder;
  std::string text;
  for (int line = 0; line < 100; ++line) text += "one two three four five six seven eight nine ten\n";
  const AddressSpace limited(rlim_t{64} << 30);
  const Outcome outcome = run_gpipe({"train", "lm", "--text", folder.write("text.txt", text), "--vocabulary", "275",
                                     "--sequence-length", "8", "--model", "transformer-lm:1,100000,8,2"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("out of memory: "), HasSubstr(" bytes could not be allocated"),
                                 HasSubstr("use a smaller model, more recompute or smaller batches"),
                                 Not(HasSubstr("defect")), Not(HasSubstr("frame #"))));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

// So that nothing is kept in the user's own data folder.
Arguments data_in(const TemporaryFolder& folder) { return {"GPIPE_DATA_DIR=" + folder.path("data")}; }

TEST(TrainTranslate, BleuAndTranslationsAreTheSameForEveryNumberOfStages) {
  const TemporaryFolder folder;
  write_help(folder);
  std::string bleu;
  for (const char* stages : {"1", "2"}) {
    const std::string weights = folder.path(std::string("t") + stages + ".safetensors");
    const Outcome outcome = run_gpipe({"train",
                                       "translate",
                                       "--data-dir",
                                       folder.path(""),
                                       "--languages",
                                       "de",
                                       "--model",
                                       "t:1,64,2,32",
                                       "--vocabulary",
                                       "305",
                                       "--max-tokens",
                                       "256",
                                       "--stages",
                                       stages,
                                       "--micro-batches",
                                       "2",
                                       "--steps",
                                       "40",
                                       "--lr",
                                       "5e-3",
                                       "--warmup",
                                       "10",
                                       "--save",
                                       weights},
                                      "", data_in(folder));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(value_of(outcome.out, "bleu_de"), HasSubstr("sentences"));
    if (bleu.empty()) bleu = value_of(outcome.out, "bleu_de");
    EXPECT_EQ(value_of(outcome.out, "bleu_de"), bleu);
  }
  EXPECT_TRUE(read_file(folder.path("t1.safetensors")) == read_file(folder.path("t2.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("data/libreoffice-help-pairs")));
  const Outcome evaluated = run_gpipe(
      {"eval", "translate", "--weights", folder.path("t1.safetensors"), "--data-dir", folder.path(""), "--stages", "2"},
      "", data_in(folder));
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(value_of(evaluated.out, "bleu_de"), bleu);
  const Outcome outcome = run_gpipe({"translate", "--weights", folder.path("t1.safetensors")},
                                    "Die Datei 3 ist offen.\n\nDie Seite 2 ist offen.\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
}

TEST(TrainTranslate, ACorpusWithoutTestPairsIsRefusedBeforeTheTraining) {
  const TemporaryFolder folder;
  write_help(folder, 5);
  const Outcome outcome = run_gpipe({"train", "translate", "--data-dir", folder.path("")}, "", data_in(folder));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("none of its 25 pairs is for test; get whole languages"),
                                 HasSubstr("gpipe get-data libreoffice-help de")));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST(MissingFile, IsBadUsageOfEveryCommand) {
  const TemporaryFolder folder;
  const std::string none = folder.path("none");
  const std::string nowhere = folder.path("nowhere");
  const Arguments no_data = {"GPIPE_DATA_DIR=" + folder.path("no-data")};
  for (const Arguments& arguments : {Arguments{"eval", "--weights", none},
                                     {"translate", "--weights", none},
                                     {"generate", "--weights", none},
                                     {"inspect", none},
                                     {"convert", none, nowhere},
                                     {"train", "lm", "--weights", none},
                                     {"train", "lm", "--text", none},
                                     {"train", "lm", "--plan", none},
                                     {"train", "lm", "--config", none},
                                     {"train", "lm", "--data-dir", none},
                                     {"train", "image", "--data-dir", none},
                                     {"train", "translate", "--data-dir", none}}) {
    const Outcome outcome = run_gpipe(arguments, "", no_data);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments.front();
    EXPECT_THAT(outcome.err, HasSubstr(none)) << arguments.front();
  }
  EXPECT_THAT(run_gpipe({"train", "lm", "--config", none}).err,
              HasSubstr("cannot read '" + none + "': No such file or directory"));
  for (const char* task : {"lm", "translate"}) {
    const Outcome outcome = run_gpipe({"train", task}, "", no_data);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("run gpipe get-data "));
  }
  EXPECT_FALSE(std::filesystem::exists(nowhere));
}

TEST_F(TrainImage, CallsOptionsInErrorsAsTheyAreTyped) {
  const Outcome stages = train({"--stages", "500", "--schedule", "1f1b"});
  EXPECT_EQ(stages.exit_code, 2);
  EXPECT_THAT(stages.err, AllOf(HasSubstr("lower --stages"), Not(HasSubstr("num_stages"))));
  const Outcome balance = train({"--stages", "2", "--balance", "1,2,3"});
  EXPECT_EQ(balance.exit_code, 2);
  EXPECT_THAT(balance.err, HasSubstr("--balance has 3 entries"));
}

TEST_F(TrainImage, TheHeaderFitsInto80Columns) {
  const std::string model = "amoebanet-d:3,8,2,1";
  const Outcome outcome = run_gpipe({"train", "image", "--data-dir", folder_.path(""), "--model", model, "--stages",
                                     "1", "--batch-size", "16", "--micro-batches", "2", "--steps", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string header = outcome.out.substr(0, outcome.out.find("train  epoch"));
  EXPECT_THAT(header, HasSubstr(model));
  EXPECT_LE(longest_line(header), 80u) << header;
}

// What this process and those that it starts may use is one core, until the end of the block.
class OneCore {
 public:
  OneCore() {
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    CPU_SET(core, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t before_ = {};
};

TEST_F(TrainImage, SaysAtItsEndWhatWouldBeFaster) {
  const OneCore one_core;
  const Outcome outcome = train({"--stages", "2", "--steps", "6"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, EndsWith("\n\n2 workers on 1 core take turns: try --stages 1\n"));
  const Outcome short_run = train({"--stages", "2", "--steps", "2"});
  ASSERT_EQ(short_run.exit_code, 0) << short_run.err;
  EXPECT_THAT(short_run.out, Not(HasSubstr("try --")));
}

TEST_F(TrainImage, ShowsHowFarAnEvaluationIs) {
  const std::string file = folder_.path("shown.safetensors");
  const Outcome trained =
      run_gpipe_on_terminal({"train", "image", "--data-dir", folder_.path(""), "--model", "resnet-cifar:8", "--stages",
                             "2", "--batch-size", "16", "--epochs", "2", "--save", file},
                            80);
  ASSERT_EQ(trained.exit_code, 0) << trained.out;
  EXPECT_THAT(trained.out, ContainsRegex("evaluate  samples [0-9]+/[0-9]+  +[0-9.]+ samples/s  ETA "));
  EXPECT_THAT(trained.out, Not(HasSubstr("idle: bubble")));
  const Outcome evaluated = run_gpipe_on_terminal({"eval", "--weights", file, "--data-dir", folder_.path("")}, 80, {},
                                                  /*shows_errors=*/true);
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.out;
  EXPECT_THAT(evaluated.out, ContainsRegex("evaluate  samples 0/[0-9]+  +0 samples/s  ETA \\?"));
  // Nothing but the result where nobody watches.
  const Outcome piped = run_gpipe({"eval", "--weights", file, "--data-dir", folder_.path("")});
  EXPECT_EQ(piped.err, "");
  EXPECT_THAT(piped.out, StartsWith("test_accuracy: "));
}

TEST(TrainHelp, EveryCommandExplainsItself) {
  for (const Arguments& arguments : {Arguments{"train", "--help"},
                                     {"train", "image", "--help"},
                                     {"train", "lm", "--help"},
                                     {"train", "translate", "--help"},
                                     {"train", "tensors", "--help"},
                                     {"eval", "--help"},
                                     {"eval", "image", "--help"},
                                     {"eval", "lm", "--help"},
                                     {"eval", "translate", "--help"},
                                     {"eval", "tensors", "--help"},
                                     {"translate", "--help"},
                                     {"generate", "--help"}}) {
    const Outcome outcome = run_gpipe(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Usage: gpipe " + arguments.front()));
    EXPECT_LE(longest_line(outcome.out), 100U);
  }
  const Outcome option = run_gpipe({"train", "image", "--stagse", "2"});
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_THAT(option.err, AllOf(HasSubstr("unknown option '--stagse' of 'gpipe train image'"), HasSubstr("--stages")));
  const Outcome task = run_gpipe({"train", "imgae"});
  EXPECT_EQ(task.exit_code, 2);
  EXPECT_THAT(task.err, AllOf(HasSubstr("unknown command 'imgae' of 'gpipe train'"), HasSubstr("'image'")));
}

}  // namespace
}  // namespace gpipe::cli
